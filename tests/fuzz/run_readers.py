"""The readers of runs, datasets, prompts and tokenizers, and something small and good for each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from small_tokenizers import CHATML, byte_level, sentencepiece_like, unigram
from small_tokenizers import write_folder as write_tokenizer

from fuzz.cases import Fault, Reader
from fuzz.mutations import of_bytes, of_json, of_lines
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.prompts.prompts import read_prompts
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.diff import compare
from mindbatch.tasks.runs.report import report_page
from mindbatch.tasks.runs.run_state import state_of
from mindbatch.tasks.runs.task import as_json, as_lines
from mindbatch.tasks.runs.watch import RunFollower
from small_runs import failure, make_run, result

ROWS = (
    {"id": "a", "prompt": "hello", "decoding": {"temperature": 0.7, "stop": ["x"], "max_new_tokens": 4}},
    {"id": "b", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
    {"id": "c", "prompt": [1, 2, 3], "decoding": None},
    {"id": "d", "prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
)
BODY = {
    "model": "m", "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
    "temperature": 0.5, "top_p": 0.9, "n": 2, "max_tokens": 7, "stop": ["x"], "seed": 3, "logprobs": True,
    "top_logprobs": 2, "logit_bias": {"5": -3}, "frequency_penalty": 0.1, "presence_penalty": -0.1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
}  # fmt: skip
REQUESTS = (
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
    {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 3}},
)
TABLE = b'id,prompt,decoding\n1,hello,"{""temperature"": 1}"\n2,"a\nb ""c"" ",\n3,\xe4\xbd\xa0,{}\n'
TEXT_LINES = "hello\r\nworld\n\n你好\n".encode()


def lines(rows: tuple[dict[str, Any], ...]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _file(name: str, content: bytes) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        (folder / name).write_bytes(content)
        return [folder / name]

    return make


def _parquet(folder: Path) -> list[Path]:
    """Texts, structs and times: plain, by dictionary and packed, where a checksum may hide what is inside."""
    rows = [dict(row, prompt=json.dumps(row.get("prompt"))) for row in ROWS] * 50
    when = pa.array(range(len(rows)), pa.timestamp("us", "Europe/Berlin"))
    table = pa.Table.from_pylist(rows).append_column("when", when)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"use_dictionary": False, "compression": "none"},
        "dictionary": {"compression": "none", "row_group_size": 40},
        "packed": {"compression": "zstd", "data_page_version": "2.0"},
    }
    for kind, options in kinds.items():
        pq.write_table(table, folder / f"{kind}.parquet", **options)
    return [folder / f"{kind}.parquet" for kind in kinds]


def _dataset(**data: Any) -> Callable[[Path], None]:
    """Every row of a file: one that can be stored and read back, or a failure of a line."""

    def read(path: Path) -> None:
        dataset = Dataset(path, data.get("format", "auto"), max_line_bytes=1 << 16)
        dataset.digest()
        with closing(RowMaker(DataConfig(**data), DecodingParams(), dataset.is_openai)) as maker:
            for position, record in enumerate(dataset.records()):
                row = maker.make(position, record)
                if isinstance(row, DataRow):
                    _check_row(row)
                else:
                    _check_failure(row)
            maker.missing_columns()

    return read


def _check_row(row: DataRow) -> None:
    back = DataRow.from_json(orjson.dumps(row))
    if back.digest != row.digest:
        raise Fault("a row is another once it was stored")
    row.prompt()
    row.params(DecodingParams())


def _check_failure(row: RowFailure) -> None:
    if not row.reason or not row.reason.isprintable() or len(row.reason) > 12_000:
        raise Fault(f"a failure with the reason {row.reason[:300]!r}")
    if row.key is not None:
        row.key.encode()


def _read_prompts(path: Path) -> None:
    read_prompts(prompts_file=path, max_line_bytes=1 << 16)


def two_runs(folder: Path) -> None:
    entries = (result("0", "hello", "yes"), result("1", "a"), failure("2"))
    for number, more in enumerate(([result("3", "x")], [result("1", "b")])):
        make_run(
            folder / str(number),
            *entries,
            *more,
            manifest={
                "status": "complete", "rows": {"total": 3, "done": 2, "failed": 1}, "sessions": [{}],
                "generated_tokens_per_second": 3.5, "seconds": 2.0, "tokens": {"prompt": 3, "generated": 9},
                "settings": {"model": {"type": "x"}}, "computed_with": [{"rows": 3}], "versions": {"a": "1"},
            },
            samples=[
                {"time": n, "seconds": 2.0 * n, "rows_total": 3, "rows_done": 1, "generated_tokens": 9 * n}
                for n in range(3)
            ],
            errors=[{"key": "2", "stage": "prompt", "reason": "too long"}],
            temperature=0.5,
        )  # fmt: skip


def _run_file(name: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        two_runs(folder)
        return [folder / "0" / name]

    return make


def _read_runs(path: Path) -> None:
    """What `runs` with its page and `--watch`, `diff` and `retry` read of a run."""
    folder = next(each for each in path.parents if each.name == "0").parent
    states = [state_of(folder / name) for name in ("0", "1")]
    orjson.dumps([as_json(state) for state in states])
    as_lines(states)
    orjson.dumps(RunFollower(folder / "0", lambda: 0.0).progress().lines())
    if states[0].status != "damaged":
        report_page(states[0]).encode()
    compare(str(folder / "0"), str(folder / "1"), 20)


def _rechecked(random: Random, content: bytes) -> bytes:
    """A run record with another content; every other time with a check that fits."""
    document = json.loads(content)
    check = document.pop("check")
    changed = of_json(random, orjson.dumps(document))
    try:
        value = orjson.loads(changed)
    except orjson.JSONDecodeError:
        return changed
    if not isinstance(value, dict):
        return changed
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    fits = xxhash.xxh3_64_hexdigest(canonical)
    return orjson.dumps({**value, "check": random.choice((check, fits, fits, fits))})


def _tokenizer(folder: Path) -> list[Path]:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML, "eos_token": "<|im_end|>",
        "bos_token": {"content": "<|endoftext|>", "lstrip": False, "__type": "AddedToken"},
        "additional_special_tokens": ["<|im_start|>"], "model_max_length": 1000, "padding_side": "left",
        "added_tokens_decoder": {"1": {"content": "<|im_start|>", "special": True}},
        "clean_up_tokenization_spaces": True,
    }  # fmt: skip
    for number, backend in enumerate((byte_level(), sentencepiece_like(), unigram())):
        write_tokenizer(folder / str(number), backend, settings if number == 0 else {"unk_token": "<unk>"})
    return sorted(folder.glob("*/tokenizer*.json"))


def _changing(suffix: str) -> Callable[[Path], list[Path]]:
    return lambda folder: [path for path in _tokenizer(folder) if path.name == suffix]


def _read_tokenizer(path: Path) -> None:
    """Load, encode, decode."""
    tokenizer = Tokenizer.load(path.parent)
    assert tokenizer is not None
    with closing(tokenizer):
        ids = tokenizer.encode("hello 世界 <|im_end|>")
        tokenizer.decode([*ids, 10**6])
        for token in (*ids[:1], min(tokenizer.vocab_size, 2**32 - 1)):
            tokenizer.token_bytes(token, None)


def _template_folder(folder: Path) -> list[Path]:
    write_tokenizer(folder, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast"})
    path = folder / "chat_template.jinja"
    path.write_text(CHATML)
    return [path]


def _read_template(path: Path) -> None:
    tokenizer = Tokenizer.load(path.parent)
    assert tokenizer is not None
    with closing(tokenizer):
        tokenizer.encode_chat([{"role": "user", "content": "hi <|im_end|>"}])


READERS = [
    Reader("jsonl", _file("a.jsonl", lines(ROWS)), _dataset(decoding_column="decoding"), of_lines(of_json)),
    Reader("jsonl_keys", _file("a.jsonl", lines(ROWS)), _dataset(key_column="id"), of_lines(of_json)),
    Reader("openai", _file("a.jsonl", lines(REQUESTS)), _dataset(format="openai"), of_lines(of_json)),
    Reader("json", _file("a.json", json.dumps(ROWS).encode()), _dataset(decoding_column="decoding"), of_json),
    Reader("csv", _file("a.csv", TABLE), _dataset(decoding_column="decoding"), of_bytes),
    Reader("tsv", _file("a.tsv", TABLE.replace(b",", b"\t")), _dataset(), of_bytes),
    Reader("gzip", _file("a.csv.gz", gzip.compress(TABLE, mtime=0)), _dataset(), of_bytes),
    Reader("parquet", _parquet, _dataset(decoding_column="decoding"), of_bytes, share=50),
    Reader("text", _file("a.txt", TEXT_LINES), _dataset(), of_bytes),
    Reader("prompts", _file("prompts.txt", TEXT_LINES), _read_prompts, of_bytes),
    Reader("ledger", _run_file("ledger.jsonl"), _read_runs, of_lines(of_json), bare_lines=True),
    Reader("run_record", _run_file("run.json"), _read_runs, _rechecked, bare_lines=True),
    Reader("manifest", _run_file("manifest.json"), _read_runs, of_json),
    Reader("metrics", _run_file("metrics.jsonl"), _read_runs, of_lines(of_json)),
    Reader("errors", _run_file("errors.jsonl"), _read_runs, of_lines(of_json)),
    Reader("tokenizer", _changing("tokenizer.json"), _read_tokenizer, of_json, share=10, bare_lines=True),
    Reader(
        "tokenizer_config",
        _changing("tokenizer_config.json"),
        _read_tokenizer,
        of_json,
        share=10,
        bare_lines=True,
    ),
    Reader("chat_template", _template_folder, _read_template, of_bytes, share=3, bare_lines=True),
]
