"""Finds the prompts of a few rows in the result file of a run."""

import csv
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import orjson

from mindbatch.io.regular_file import open_regular
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.manifest import written_results
from mindbatch.run.result_rows import cell_text

MAX_BYTES = 1 << 30
"""Size of a result file above which it is not searched."""


def prompts_of(folder: RunFolder, keys: Collection[str]) -> dict[str, str]:
    """Returns the prompts by key, as text or JSON, as far as the run has written and holds them."""
    prompts: dict[str, str] = {}
    for name in sorted(written_results(folder)):
        path = folder.path / name
        read = {".jsonl": _from_lines, ".csv": _from_csv, ".parquet": _from_parquet}[path.suffix]
        try:
            if path.stat().st_size <= MAX_BYTES:
                prompts |= dict(read(path, keys))
        except (OSError, ValueError, csv.Error):  # gone, or changed by others: the page does without
            continue
    return prompts


def _from_lines(path: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    beginnings = tuple(orjson.dumps({"key": key})[:-1] + b"," for key in keys)
    with open(open_regular(path), "rb") as file:
        for line in file:
            if line.startswith(beginnings):
                row = orjson.loads(line)
                if row.get("prompt") is not None:
                    yield row["key"], cell_text(row["prompt"])


def _from_csv(path: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    before = csv.field_size_limit(sys.maxsize)
    try:
        with open(open_regular(path), encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row.get("key") in keys and row.get("prompt"):
                    yield str(row["key"]), row["prompt"]
    finally:
        csv.field_size_limit(before)


def _from_parquet(path: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    from pyarrow import ArrowException  # takes long to import
    from pyarrow.parquet import ParquetFile

    try:
        with open(open_regular(path), "rb") as file, ParquetFile(file) as table:
            if "prompt" in table.schema_arrow.names:
                for batch in table.iter_batches(columns=["key", "prompt"]):
                    for row in batch.to_pylist():
                        if row["key"] in keys and row["prompt"] is not None:
                            yield row["key"], cell_text(row["prompt"])
    except ArrowException as error:
        raise ValueError(f"{path}: {error}") from error
