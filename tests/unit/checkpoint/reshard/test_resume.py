"""A reshard that is taken up again keeps what is whole and makes the rest anew; two never mix."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.reshard_kills import OTHER_WAYS, SMALL, WAYS, files_of, plan_of
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.reshard.carry_out import carry_out
from mindbatch.checkpoint.reshard.journal import read_journal
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.storage import StorageError
from reshard_models import write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", SMALL, "BF16")


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> ReshardPlan:
    return plan_of(source, tmp_path / "cut", WAYS)


@pytest.fixture
def unbroken(source: Path, tmp_path: Path) -> dict[str, bytes]:
    carry_out(plan_of(source, tmp_path / "unbroken", WAYS), CountingStorage())
    return files_of(tmp_path / "unbroken")


@pytest.fixture
def journal(plan: ReshardPlan, tmp_path: Path) -> Path:
    """That of a reshard that was broken off when half of its tensors were noted."""
    counting = CountingStorage()
    carry_out(plan, counting)
    (tmp_path / "cut").rename(tmp_path / "first")
    place = [i for i, name in enumerate(counting.operations) if name == "write_at"][-4]
    with pytest.raises(StorageError):
        carry_out(plan, FailingStorage(place, errno.EIO))
    return tmp_path / "cut.part/reshard.journal"


def noted(journal: Path) -> int:
    content = read_journal(journal)
    assert content is not None
    return len(content.written)


def test_what_was_noted_is_not_written_again(
    plan: ReshardPlan, journal: Path, unbroken: dict[str, bytes]
) -> None:
    kept, storage = noted(journal), CountingStorage()
    outcome = carry_out(plan, storage)
    assert (outcome.kept, outcome.notes) == (kept, [])
    assert kept > 5
    assert storage.operations.count("write_at") == WAYS + sum(len(j.writings) for j in plan.jobs) - kept
    assert files_of(plan.target) == unbroken


def test_what_is_not_as_noted_is_written_again(
    plan: ReshardPlan, journal: Path, unbroken: dict[str, bytes]
) -> None:
    kept = noted(journal)
    content = read_journal(journal)
    assert content is not None
    first = content.written[0]
    with open_tensor_file(journal.parent / first.file) as file:
        offset = file.tensors[first.tensor].extents[0].offset
    data = bytearray((journal.parent / first.file).read_bytes())
    data[offset] ^= 1
    (journal.parent / first.file).write_bytes(data)
    outcome = carry_out(plan, CountingStorage())
    assert outcome.kept == kept - 1
    assert outcome.notes == [f"{journal.parent}: 1 tensors are not as noted; made anew"]
    assert files_of(plan.target) == unbroken


@pytest.mark.parametrize(
    "tear",
    [
        lambda data: data[:-7],
        lambda data: data + bytes(40),
        lambda data: data + b'["rank_0/model.safetensors", "x", "y"]\n',
        lambda data: data + b'["rank_7/else", "x", "y", 3]\n',
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"[]\n" + data,
        lambda data: b'{"settings": [3]}\n' + data,
    ],
)
def test_a_torn_journal_is_mended(
    plan: ReshardPlan, journal: Path, unbroken: dict[str, bytes], tear: Callable[[bytes], bytes]
) -> None:
    journal.write_bytes(tear(journal.read_bytes()))
    carry_out(plan, CountingStorage())
    assert files_of(plan.target) == unbroken


def test_another_reshard_begins_anew_and_says_so(plan: ReshardPlan, journal: Path, source: Path) -> None:
    other = plan_of(source, plan.target, OTHER_WAYS)
    outcome = carry_out(other, CountingStorage())
    assert outcome.kept == 0
    changed = f"(model_parallel was {WAYS}, now {OTHER_WAYS})"
    assert outcome.notes == [f"{journal.parent}: was begun as another reshard {changed}; begun anew"]
    assert not (plan.target / "reshard.journal").exists()
