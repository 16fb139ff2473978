"""Jobs: rows in order and once, in threads that all end, in as much memory as there are threads; progress."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digests import record_digests, tensor_digest
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.stored import ByteExtent
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.placement.regions import Region
from mindbatch.checkpoint.reshard.execution import do_jobs
from mindbatch.checkpoint.reshard.folder import TargetFiles
from mindbatch.checkpoint.reshard.job import Job, Reading, Writing, chunks_of
from mindbatch.checkpoint.reshard.progress import PlainProgress
from mindbatch.checkpoint.reshard.write import ReadCheck, Sources, write_job
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage
from reshard_adapters import write_adapter_for
from reshard_models import LLAMA, source_shapes_of, write_tensors

# ---- chunks of rows

ROWS, COLUMNS = 24, 16
FULL = Reading("full", "x", "F32", (ROWS, COLUMNS), (ROWS, COLUMNS))


def cut_into(regions: list[Region]) -> Job:
    """A tensor of which each rank gets a region."""
    writings = []
    for rank, region in enumerate(regions):
        (top, bottom), (left, right) = region
        shape = (bottom - top, right - left)
        copy = Copy(0, "x", region, ((0, shape[0]), (0, shape[1])))
        extents = (ByteExtent(0, 4 * shape[0] * shape[1]),)
        writings.append(Writing(f"rank_{rank}", "x", "F32", shape, shape, extents, (copy,)))
    return Job("x", {(0, "x"): FULL}, tuple(writings))


BY_ROWS = cut_into([((low, low + 6), (0, COLUMNS)) for low in (0, 6, 12, 18)])
BY_COLUMNS = cut_into([((0, ROWS), (low, low + 4)) for low in (0, 4, 8, 12)])
REPLICATED = cut_into([((0, ROWS), (0, COLUMNS))] * 4)


@pytest.mark.parametrize("job", [BY_ROWS, BY_COLUMNS, REPLICATED], ids=["rows", "columns", "replicas"])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 10**6])
def test_each_row_is_read_once_and_in_order(job: Job, chunk_bytes: int) -> None:
    rows_read: list[int] = []
    rows_made: Counter[tuple[str, int]] = Counter()
    for chunk in chunks_of(job, chunk_bytes):
        for row in range(chunk.start, chunk.stop):
            rows_made.update((writing.file, row) for writing in chunk.writings)
        for fetch in chunk.fetches:
            rows_read += range(chunk.start + fetch.offset, chunk.stop + fetch.offset)
    assert rows_read == [*range(ROWS)]
    assert {*rows_made.values()} == {1}
    assert len(rows_made) == sum(writing.rows for writing in job.writings)


def test_a_band_is_as_large_as_it_may_be() -> None:
    chunks = list(chunks_of(BY_COLUMNS, 4 * COLUMNS * 2 * 5))  # a row is read, and written once in all
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]


def test_nothing_is_done_for_no_rows() -> None:
    assert list(chunks_of(cut_into([((0, 0), (0, 4))]))) == []


def test_bytes_that_come_again_are_digested_once(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    path, data = tmp_path / "x.safetensors", memoryview(array.tobytes())
    write_tensors(path, {"x": array}, "F32")
    with open_tensor_file(path) as file:
        reading = Reading(str(path), "x", "F32", (6, 4), (6, 4), digest=tensor_digest(file, "x"))
    check = ReadCheck(reading)
    for start, stop in ((0, 40), (16, 96), (0, 8)):
        check.take(start, data[start:stop])
    with Sources() as sources:
        check.finish(sources)


# ---- threads

COUNT = 40


def zeros(count: int = COUNT) -> list[Job]:
    """Each writes a zero, as padding, at a place of its own."""
    return [
        Job(
            f"tensor_{place}",
            {},
            (Writing("file", f"tensor_{place}", "U8", (1,), (1,), (ByteExtent(place, 1),), ()),),
        )
        for place in range(count)
    ]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize("workers", [1, 2, 7, COUNT + 1])
def test_all_are_done(tmp_path: Path, workers: int) -> None:
    (tmp_path / "file").write_bytes(b"\1" * (COUNT + 1))
    with TargetFiles(tmp_path, Storage()) as targets:
        done = [*do_jobs(partial(write_job, write=targets.write), zeros(), workers)]
    assert sorted(job.name for job, _ in done) == sorted(job.name for job in zeros())
    assert (tmp_path / "file").read_bytes() == bytes(COUNT) + b"\1"


def endless(job: Job, sources: Sources) -> None:
    """A job that reads until it is stopped; the last one fails."""
    while job.name != f"tensor_{COUNT - 1}":
        sources.refuse_when_stopped()
    raise MemoryError


@pytest.mark.parametrize("workers", [2, 3])
def test_a_failure_stops_the_others(workers: int) -> None:
    with pytest.raises(CheckpointError, match="tensor_39.*: not enough memory; lower workers"):
        list(do_jobs(endless, zeros()[-workers:], workers))


def test_closing_stops_what_is_under_way() -> None:
    begun = threading.Event()

    def first_alone(job: Job, sources: Sources) -> None:
        if job.name == "tensor_0":
            assert begun.wait(60)
            return
        begun.set()
        endless(job, sources)

    results = do_jobs(first_alone, zeros(COUNT - 1), 2)
    first, _ = next(results)
    assert first.name == "tensor_0"
    results.close()


# ---- progress


def test_without_a_terminal_there_is_a_line_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    mib, times = 1 << 20, [0.0]
    progress = PlainProgress("mindbatch", lambda: times[-1])
    for seconds, done in ((0, 100), (29, 390), (30, 400), (59, 690), (61, 710)):
        times.append(seconds)
        progress("resharding", done * mib, 4000 * mib)
    times.append(91)
    progress("reading back", 0, 4000 * mib)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "mindbatch: resharding: 400 of 4,000 MiB, 0:06:00 left",
        "mindbatch: resharding: 710 of 4,000 MiB, 0:05:29 left",
        "mindbatch: reading back: 0 of 4,000 MiB",
    ]


TOOLS = Path(__file__).parents[4] / "tools"
MERGE = """
import sys
from bench.process_memory import PeakMemory
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
source, target, ways, workers, adapter = sys.argv[1:]
config = ReshardConfig(source=source, workers=int(workers))
config.target.dir, config.target.model_parallel, config.lora.merge = target, int(ways), adapter
with PeakMemory() as memory:
    run(config)
print(memory.peak)
"""
DEEP = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16001, "num_hidden_layers": 3}
WIDE = {**DEEP, "vocab_size": 32001, "num_hidden_layers": 1}
"""Its head alone is 65 MB, would be 131 MB in float32, and so would be its product."""
MB = 10**6


def peak_of(source: Path, target: Path, workers: int, *adapter: Path) -> int:
    """Bytes that all processes together have at most.

    A shell is between: the system counts the memory of the process that starts another to that one's peak.
    """
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    script = ["-c", MERGE] if adapter else ["bench", "reshard.our_job"]
    command = [*shell, sys.executable, *script, source, target, 4, workers, *adapter]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, cwd=TOOLS)
    return int(done.stdout.split()[-1])


def write_large(source: Path, config: dict[str, Any]) -> int:
    """A model of noise; the bytes of its largest tensor."""
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    noise = np.random.default_rng(0).integers(0, 1 << 14, 1 << 24, dtype=np.uint16)
    shapes = source_shapes_of(config)
    arrays = {name: np.resize(noise[place:], shapes[name]) for place, name in enumerate(shapes)}
    assert sum(array.nbytes for array in arrays.values()) > 130 * MB
    write_tensors(source / "model.safetensors", arrays, "BF16")
    record_digests(source)
    return max(array.nbytes for array in arrays.values())


@pytest.mark.slow
def test_130_megabytes(tmp_path: Path) -> None:
    largest = write_large(tmp_path / "source", DEEP)
    assert peak_of(tmp_path / "source", tmp_path / "two", 2) < 300 * MB + 1.2 * largest * 2
    assert peak_of(tmp_path / "two", tmp_path / "again", 1) < 120 * MB


@pytest.mark.slow
def test_a_merge_into_a_weight_of_65_megabytes(tmp_path: Path) -> None:
    assert write_large(tmp_path / "source", WIDE) > 65 * MB
    adapter = write_adapter_for(tmp_path / "adapter", WIDE)
    assert peak_of(tmp_path / "source", tmp_path / "one", 1, adapter) < 130 * MB


@pytest.mark.on_demand
def test_a_merge_in_two_threads_and_of_a_source_of_ranks(tmp_path: Path) -> None:
    write_large(tmp_path / "source", WIDE)
    adapter, other = (write_adapter_for(tmp_path / f"adapter{seed}", WIDE, seed=seed) for seed in (7, 8))
    assert peak_of(tmp_path / "source", tmp_path / "two", 2, adapter) < 280 * MB
    assert peak_of(tmp_path / "two", tmp_path / "again", 1, other) < 130 * MB
