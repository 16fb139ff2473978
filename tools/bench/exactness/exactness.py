"""Compares the errors of float32 logits with those of transformers, both against float64.

    python tools/bench exactness --python ~/torch/bin/python

Random models of 6 layers, 512 wide. --python: an interpreter with torch and transformers, which makes them
and computes their logits in float32 and float64.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.child_process import command
from bench.command_line import parser_of
from mindbatch.config.environment import prepare_environment
from mindbatch.config.model_schema import ModelConfig
from mindbatch.kernels.native_library import library_text
from mindbatch.loading.first_logits import prompt_logits
from mindbatch.loading.providers import open_model
from mindbatch.tasks.doctor import processor

TYPES = ("llama", "qwen3", "gemma2", "phi3", "olmo2", "gpt2", "gpt_neox", "glm4")
LENGTHS = (16, 256, 2048)


def error(logits: npt.NDArray[np.float32], exact: npt.NDArray[np.float64]) -> float:
    """Returns the root of the mean squared error."""
    return float(np.sqrt(np.mean(np.square(logits.astype(np.float64) - exact))))


def ratio(folder: Path, length: int) -> float:
    """Returns our error as a part of that of transformers, of the prompt of so many tokens."""
    recorded = np.load(folder / f"{length}.npz")
    opened = open_model(ModelConfig(checkpoint_name_or_path=str(folder)))
    with opened.folder:
        ours = prompt_logits(opened.spec.architecture, opened.folder, [recorded["ids"].tolist()])
    return error(ours, recorded["exact"]) / error(recorded["float32"], recorded["exact"])


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--python", required=True, help="an interpreter with torch and transformers")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    options = parser.parse_args()
    prepare_environment()
    print(f"{processor()}; {library_text()}\n")
    print("| type |" + "".join(f" {length} |" for length in options.lengths))
    print("|---|" + "---:|" * len(options.lengths))
    for name in options.types:
        with tempfile.TemporaryDirectory() as folder:
            worker = command(options.python, "exactness.transformers_worker", folder, name, *options.lengths)
            subprocess.run(worker, check=True)
            ratios = (ratio(Path(folder), length) for length in options.lengths)
            print(f"| {name} |" + "".join(f" {value:.2f} |" for value in ratios), flush=True)
