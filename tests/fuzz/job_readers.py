"""Whole commands over changed files: they compute, or end with lines of ours, whatever a file holds."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ckpt_bytes import ckpt_bytes
from safetensors.numpy import load_file, save_file
from small_tokenizers import CHATML

import ice_tokenizers
import pangu_tokenizers
from fuzz.cases import Fault, Reader
from fuzz.checkpoint_readers import TENSORS
from fuzz.mutations import Mutation, of_bytes, of_json, of_lines, of_safetensors
from fuzz.run_readers import REQUESTS, ROWS, lines, two_runs
from mindbatch import cli
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from peft_folders import write_adapter
from pytorch_bytes import pytorch_bytes
from quantised_folders import sample
from rank_tables import plain_table
from small_configs import LLAMA
from small_gpt2 import write_small_gpt2

MODEL = "model.checkpoint_name_or_path=model runtime.cache_memory=4MiB runtime.num_threads=1"
GENERATE = f"generate {MODEL} prompts=[hello] decoding.max_new_tokens=2"
BATCH = f"batch {MODEL} output.dir=out decoding=sampling decoding.max_new_tokens=2"
_OURS = re.compile(r"mindbatch: |[\d,]+ (rows? run|prompts?, )")
_FOREIGN = ("Traceback", "panicked", "(run again with --verbose")


@contextlib.contextmanager
def _standard_streams() -> Iterator[dict[int, str]]:
    """Files in place of standard output and error; at the end what is in them, whoever wrote it."""
    written: dict[int, str] = {}
    kept = {number: os.dup(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    with contextlib.ExitStack() as files:
        places = {number: files.enter_context(tempfile.TemporaryFile()) for number in kept}
        for number, file in places.items():
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (  # they stay open with their descriptors
            open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for number in (1, 2)
        )
        try:
            yield written
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdout, sys.stderr = streams
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)
            for number, file in places.items():
                file.seek(0)
                written[number] = file.read().decode("utf-8", "backslashreplace")


def run_whole(folder: Path, command: str) -> int:
    """Runs a command in the folder, in this process; the exit code. What it wrote before is removed."""
    os.chdir(folder)
    shutil.rmtree("out", ignore_errors=True)
    with _standard_streams() as written:
        code = cli.main(command.split(" "), is_command=True)
    if code not in (EXIT_DONE, EXIT_FAILED, EXIT_USAGE):
        raise Fault(f"exit code {code}")
    for line in written[2].splitlines():
        if not _OURS.match(line) or any(word in line for word in _FOREIGN):
            raise Fault(f"a line that is not ours: {line[:300]!r}")
    if code != EXIT_DONE and not (written[1] or written[2]):
        raise Fault(f"exit code {code} without a word")
    return code


def _reader(
    name: str, make: Callable[[Path], list[Path]], command: str, mutation: Mutation, share: int = 10
) -> Reader:
    """command: FILE in it is the changed file, FOLDER the one that holds it."""

    def home_of(path: Path) -> Path:
        return next(folder for folder in path.parents if (folder / "home").exists())

    good: dict[Path, bytes] = {}

    def made(folder: Path) -> list[Path]:
        (folder / "home").touch()
        good.update((path, path.read_bytes()) for path in make(folder))
        return [*good]

    def read(path: Path) -> None:
        home = home_of(path)
        file = path.relative_to(home)
        code = run_whole(home, command.replace("FILE", str(file)).replace("FOLDER", str(file.parent)))
        if code == EXIT_USAGE and path.read_bytes() == good[path]:
            raise Fault("what is good is refused")

    return Reader(f"job_{name}", made, read, mutation, share, bare_lines=True, is_job=True)


def _model(*names: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        model = write_small_gpt2(folder / "model", chat_template=None)
        (model / "chat_template.jinja").write_text(CHATML)
        (model / "generation_config.json").write_text('{"eos_token_id": [1, 2], "temperature": 0.6}')
        (model / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
        _rows(folder)
        return [model / name for name in names]

    return make


def _rows(folder: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")


def _data(name: str, content: bytes) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        write_small_gpt2(folder / "model")
        (folder / name).write_bytes(content)
        return [folder / name]

    return make


def _parquet() -> bytes:
    table = pa.table(
        {
            "prompt": ["hello", "world"] * 20,
            "decoding": [{"temperature": 0.5, "stop": ["x"]}, None] * 20,
            "when": pa.array(range(40), pa.timestamp("us", "Europe/Berlin")),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", row_group_size=15)
    return sink.getvalue().to_pybytes()


def _adapters(folder: Path) -> list[Path]:
    model = Path(__file__).parents[2] / "examples/tiny_gpt2"
    os.symlink(model, folder / "model")
    adapter = write_adapter(folder / "adapter", 2, 1)
    (folder / "lora_adapter.json").write_text(json.dumps({"one": "adapter", "two": str(adapter)}))
    return [adapter / "adapter_config.json", folder / "lora_adapter.json"]


def _adapter_tensors(folder: Path) -> list[Path]:
    return [_adapters(folder)[0].with_name("adapter_model.safetensors")]


def _vocabularies(folder: Path) -> list[Path]:
    """Beside a model, in whose place their tokens are never computed."""
    write_small_gpt2(folder / "model")
    ice = ice_tokenizers.write(folder / "ice", ice_tokenizers.model_file(), num_image_tokens=0)
    pangu = pangu_tokenizers.write(folder / "pangu", pangu_tokenizers.model_file())
    return [*ice.glob("*.model"), *pangu.glob("*.model")]


def _pytorch(folder: Path) -> list[Path]:
    model = write_small_gpt2(folder / "model")
    weights = model / "model.safetensors"
    (model / "pytorch_model.bin").write_bytes(pytorch_bytes(load_file(weights)))
    weights.unlink()
    return [model / "pytorch_model.bin"]


def _shards(folder: Path) -> list[Path]:
    model = write_small_gpt2(folder / "model")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[half::2]) for half in range(2)]
    files = {f"{number}.safetensors": half for number, half in enumerate(halves)}
    for name, half in files.items():
        save_file(half, model / name)
    weight_map = {tensor: name for name, half in files.items() for tensor in half}
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [index]


def _quantised(file: str) -> Callable[[Path], list[Path]]:
    return lambda folder: [sample("awq", LLAMA).write(folder / "model") / file]


def _ckpt(folder: Path) -> list[Path]:
    (folder / "w.ckpt").write_bytes(ckpt_bytes(TENSORS, 16))
    return [folder / "w.ckpt"]


def _table(folder: Path) -> list[Path]:
    (folder / "table.json").write_text(json.dumps(plain_table(2, 4)))
    return [folder / "table.json"]


def _beside_chats(name: str, content: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        _rows(folder)
        return _data(name, content.encode())(folder)

    return make


def _run(folder: Path) -> list[Path]:
    two_runs(folder)
    names = ("run.json", "manifest.json", "metrics.jsonl", "errors.jsonl", "ledger.jsonl")
    return [folder / "0" / name for name in names]


def _slow_tokenizer(folder: Path) -> list[Path]:
    """Files that transformers makes a tokenizer of."""
    model = write_small_gpt2(folder / "model")
    content = json.loads((model / "tokenizer.json").read_text())["model"]
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (model / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"])
    (model / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (model / "added_tokens.json").write_text('{"<|im_start|>": 1}')
    return [model / name for name in ("vocab.json", "merges.txt", "added_tokens.json")]


def _pieces(folder: Path) -> list[Path]:
    model = write_small_gpt2(folder / "model")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    (model / "spiece.model").write_bytes(ice_tokenizers.model_file())
    return [model / "spiece.model"]


_CSV = b'prompt,decoding\nhello,"{""temperature"": 1}"\n"a\nb ""c"" ",\n\xe4\xbd\xa0,{}\n'
_CHATS = f"{BATCH} data.path=chats.jsonl"
_TEMPLATE = f"{BATCH} data.path=model/config.json data.format=jsonl data.template_file=FILE"
_TOOLS = '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
_QUESTIONS = ({"prompt": "2 + 2 =", "answer": "4"}, {"prompt": "3 + 3 =", "answer": ["6", "six"]})
_EVALUATE = f"evaluate {MODEL} data.path=FILE metrics=[exact_match] output.dir=out decoding.max_new_tokens=2"
_QUANTISED = f"generate {MODEL} prompts=[[1,2]] decoding.max_new_tokens=2"
_ROWS = f"{BATCH} data.path=FILE data.decoding_column=decoding"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")

READERS = [
    _reader("config", _model(*JSON_FILES), _CHATS, of_json),
    _reader("tokenizer", _model("tokenizer.json"), _CHATS, of_json),
    _reader("template", _model("chat_template.jinja"), _CHATS, of_bytes),
    _reader("weights", _model("model.safetensors"), GENERATE, of_safetensors),
    _reader("jsonl", _data("a.jsonl", lines(ROWS)), _ROWS, of_lines(of_json)),
    _reader("openai", _data("a.jsonl", lines(REQUESTS)), f"{BATCH} data.path=FILE", of_lines(of_json)),
    _reader("json", _data("a.json", json.dumps(ROWS).encode()), _ROWS, of_json),
    _reader("csv", _data("a.csv", _CSV), _ROWS, of_bytes),
    _reader("gzip", _data("a.csv.gz", gzip.compress(_CSV, mtime=0)), _ROWS, of_bytes),
    _reader("zstd", _data("a.jsonl.zst", pa.compress(lines(ROWS), "zstd", asbytes=True)), _ROWS, of_bytes),
    _reader("parquet", _data("a.parquet", _parquet()), _ROWS, of_bytes),
    _reader("text", _data("a.txt", b"hello\r\nworld\n"), f"{BATCH} data.path=FILE", of_bytes),
    _reader(
        "prompts", _data("p.txt", b"hello\r\n\n[1, 2]\n"), f"generate {MODEL} prompts_file=FILE", of_bytes
    ),
    _reader("template_file", _data("t.txt", b"Q: {{ model_type }}"), _TEMPLATE, of_bytes),
    _reader("adapter", _adapters, f"{GENERATE} lora.adapters=lora_adapter.json lora.default=one", of_json),
    _reader(
        "adapter_tensors",
        _adapter_tensors,
        f"{GENERATE} lora.adapters=lora_adapter.json lora.default=one",
        of_safetensors,
    ),
    _reader("vocabulary", _vocabularies, f"{GENERATE} model.tokenizer=FOLDER", of_bytes),
    _reader("slow_tokenizer", _slow_tokenizer, GENERATE, of_bytes),
    _reader("pieces", _pieces, GENERATE, of_bytes),
    _reader("pytorch", _pytorch, GENERATE, of_bytes),
    _reader("index", _shards, GENERATE, of_json),
    _reader("quantised", _quantised("model.safetensors"), _QUANTISED, of_safetensors),
    _reader("quantised_config", _quantised("config.json"), _QUANTISED, of_json),
    _reader("inspect", _ckpt, "inspect FILE", of_bytes),
    _reader("reshard", _ckpt, "reshard source=FILE target.dir=out", of_bytes),
    _reader("table", _table, "rank-table action=check files=[FILE]", of_json),
    _reader("tools", _beside_chats("tools.json", _TOOLS), f"{_CHATS} data.tools=FILE", of_json),
    _reader("keys", _beside_chats("keys.txt", "0\n1\n"), f"{_CHATS} data.filter_keys=FILE", of_bytes),
    _reader("evaluate", _data("q.jsonl", lines(_QUESTIONS)), _EVALUATE, of_lines(of_json)),
    _reader("runs", _run, "runs .", of_bytes),
    _reader("diff", _run, "diff 0 1", of_bytes),
]
