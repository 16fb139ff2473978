"""Jobs with views and transposed copies, with chunks of every size: each element as NumPy puts it."""

import functools
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.tensor_set import Source, open_source
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan
from mindbatch.checkpoint.placement.regions import as_placed, whole_placements
from mindbatch.checkpoint.reshard import write
from mindbatch.checkpoint.reshard.folder import TargetFiles
from mindbatch.checkpoint.reshard.job import Job, chunks_of, jobs_of
from mindbatch.checkpoint.reshard.write import Sources, check_job, write_job
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage
from reshard_models import flip_a_bit
from tensor_files import write_tensor_file

FUSED = np.arange(6 * 9, dtype=np.float32).reshape(6, 9)  # [inputs, outputs of q, k, v]
GATE, UP = (np.arange(5 * 4, dtype=np.float32).reshape(5, 4) + start for start in (100, 200))
SIZES = [1, 24, 50, 100, 1 << 20]


def box(*ranges: int) -> tuple[tuple[int, int], ...]:
    return tuple(zip(ranges[::2], ranges[1::2], strict=True))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / "source"
    folder.mkdir()
    arrays = {"fused": FUSED, "gate": GATE, "up": UP}
    layout = safetensors_layout([(name, "F32", array.shape) for name, array in arrays.items()])
    write_tensor_file(folder / "model.safetensors", layout, lambda name: [arrays[name].data.cast("B")])
    record_digests(folder)
    return open_source(folder)


def plans() -> list[TensorPlan]:
    """q, k and v transposed on two ranks; rows of gate and up in turn; one with both kinds of copies."""
    found = []
    for rank in (0, 1):
        for number, name in enumerate("qkv"):
            low, high = (0, 2) if rank == 0 else (2, 3)
            columns = (3 * number + low, 3 * number + high)
            copy = Copy(0, "fused", ((0, 6), columns), box(0, high - low, 0, 6), transposed=True)
            shape = (high - low + rank, 6)  # the last rank is padded
            found.append(TensorPlan(name, rank, shape, shape, (copy,)))
    halves = tuple(
        Copy(0, name, box(0, 5, 0, 4), box(0, 5, 4 * number, 4 * number + 4))
        for number, name in enumerate(("gate", "up"))
    )
    found.append(TensorPlan("both", 0, (10, 4), (5, 8), halves))
    mixed = (
        Copy(0, "fused", box(0, 6, 6, 9), box(0, 3, 0, 6), transposed=True),
        Copy(0, "fused", box(0, 3, 0, 6), box(3, 6, 0, 6)),
        Copy(0, "fused", box(2, 4, 1, 4), box(6, 9, 4, 6), transposed=True),
        Copy(0, "up", box(0, 3, 0, 4), box(6, 9, 0, 4)),
    )
    return [*found, TensorPlan("mixed", 0, (9, 6), (9, 6), mixed)]


def expected(plan: TensorPlan) -> np.ndarray:
    arrays = {"fused": FUSED, "gate": GATE, "up": UP}
    made = np.zeros(plan.view, np.float32)
    for copy in plan.copies:
        part = arrays[copy.source_name][tuple(slice(*each) for each in copy.source)]
        made[tuple(slice(*each) for each in copy.target)] = part.T if copy.transposed else part
    return made.reshape(plan.shape)


def jobs(source: Source, folder: Path) -> list[Job]:
    """The jobs, and files for what they write."""
    files = [f"rank_{rank}.safetensors" for rank in (0, 1)]
    layouts = {
        name: safetensors_layout([(plan.name, "F32", plan.shape) for plan in plans() if plan.rank == rank])
        for rank, name in enumerate(files)
    }
    for name, layout in layouts.items():
        sizes = {tensor: extents[0].nbytes for tensor, extents in layout.extents.items()}
        write_tensor_file(folder / name, layout, lambda tensor, sizes=sizes: [bytes(sizes[tensor])])
    held = as_placed(whole_placements(source.ranks[0].shapes), 1)
    return jobs_of(
        plans(), held, source.ranks, layouts, files, dict.fromkeys(["q", "k", "v", "both", "mixed"], "F32")
    )


@pytest.mark.parametrize("chunk_bytes", SIZES)
def test_bands_of_any_size(
    source: Source, tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "chunks_of", functools.partial(chunks_of, chunk_bytes=chunk_bytes))
    monkeypatch.setattr(write, "CHUNK_BYTES", chunk_bytes)
    with Sources() as sources, TargetFiles(tmp_path, Storage()) as targets:
        made = jobs(source, tmp_path)
        written = [each for job in made for each in write_job(job, sources, targets.write)]
        for job in made:
            check_job(job, sources, tmp_path)
    digests = {(each.file, each.tensor): each.digest for each in written}
    for plan in plans():
        name = f"rank_{plan.rank}.safetensors"
        with open_source(tmp_path / name) as found:
            (rank,) = found.ranks
            data = bytearray(rank.info(plan.name).nbytes)
            rank.read_into(plan.name, 0, memoryview(data))
            np.testing.assert_array_equal(
                np.frombuffer(data, np.float32).reshape(plan.shape), expected(plan), err_msg=plan.name
            )
            assert rank.computed_digests([plan.name])[plan.name] == digests[name, plan.name]


def test_what_is_made_of_the_same_tensors_is_one_job(source: Source, tmp_path: Path) -> None:
    (job,) = jobs(source, tmp_path)  # mixed joins all
    assert {writing.name for writing in job.writings} == {"q", "k", "v", "both", "mixed"}
    assert [name for _, name in job.readings] == ["fused", "gate", "up"]


def test_a_transposed_source_is_read_once(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[int, int]] = []
    rows_of_source = Sources.rows

    def counting(self, reading, start, stop, *rest):  # type: ignore[no-untyped-def]
        rows.append((start, stop))
        return rows_of_source(self, reading, start, stop, *rest)

    monkeypatch.setattr(Sources, "rows", counting)
    monkeypatch.setattr(write, "CHUNK_BYTES", 2 * 36)
    (job,) = jobs(source, tmp_path)
    writings = tuple(writing for writing in job.writings if writing.name in "qkv")
    with Sources() as sources, TargetFiles(tmp_path, Storage()) as targets:
        write_job(Job("q", {(0, "fused"): job.readings[0, "fused"]}, writings), sources, targets.write)
    assert len(writings) == 6
    assert rows == [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize("name", ["q", "both", "mixed"])
def test_an_element_that_is_wrong_does_not_read_back(source: Source, tmp_path: Path, name: str) -> None:
    made = jobs(source, tmp_path)
    with Sources() as sources, TargetFiles(tmp_path, Storage()) as targets:
        for job in made:
            write_job(job, sources, targets.write)
        (writing, *_) = [each for job in made for each in job.writings if each.name == name]
        flip_a_bit(tmp_path / writing.file, name, 5)
        with pytest.raises(CheckpointError, match=f"tensor '{name}' is not what its source is"):
            check_job(made[0], sources, tmp_path)


@pytest.mark.parametrize("tensor", ["fused", "gate"])
def test_a_damaged_source_is_found_though_it_is_read_transposed(
    source: Source, tmp_path: Path, tensor: str
) -> None:
    flip_a_bit(tmp_path / "source/model.safetensors", tensor, 7)
    (job,) = jobs(source, tmp_path)
    sources, targets = Sources(), TargetFiles(tmp_path, Storage())
    with sources, targets, pytest.raises(CheckpointError, match=f"'{tensor}' is damaged"):
        write_job(job, sources, targets.write)
