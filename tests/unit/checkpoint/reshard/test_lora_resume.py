"""A merging reshard that is broken off goes on with the same adapter, and begins anew with another."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage, KillingStorage
from harness.forks import Send, run_forked
from harness.reshard_kills import SMALL, SYNC_BYTES, WAYS, files_of
from mindbatch.checkpoint.reshard.carry_out import carry_out
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.storage import StorageError
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source
from reshard_adapters import write_adapter_for
from reshard_models import write_model


def plan_of(home: Path, target: str, adapter: str) -> ReshardPlan:
    """A merge of home/adapter into home/source that syncs often and is read back."""
    config = ReshardConfig(source=str(home / "source"), verify=True)
    config.target.dir, config.target.model_parallel = str(home / target), WAYS
    config.lora.merge = str(home / adapter)
    opened = open_reshard_source(config)
    with opened.source:
        return replace(plan_reshard(config, opened), sync_bytes=SYNC_BYTES)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_model(tmp_path / "source", SMALL, "BF16")
    write_adapter_for(tmp_path / "adapter", SMALL)
    write_adapter_for(tmp_path / "other", SMALL, seed=8)
    for adapter in ("adapter", "other"):
        carry_out(plan_of(tmp_path, f"unbroken_{adapter}", adapter), CountingStorage())
    return tmp_path


def broken_off(home: Path) -> ReshardPlan:
    """A merge whose journal has most of its tensors; the disk has failed then."""
    plan, counting = plan_of(home, "made", "adapter"), CountingStorage()
    carry_out(plan_of(home, "first", "adapter"), counting)
    place = [i for i, name in enumerate(counting.operations) if name == "write_at"][-4]
    with pytest.raises(StorageError):
        carry_out(plan, FailingStorage(place, errno.EIO))
    return plan


def test_the_same_adapter_goes_on(home: Path) -> None:
    plan = broken_off(home)
    outcome = carry_out(plan_of(home, "made", "adapter"), CountingStorage())
    assert outcome.kept > 5
    assert outcome.notes == []
    assert files_of(plan.target) == files_of(home / "unbroken_adapter")


def test_another_adapter_begins_anew(home: Path) -> None:
    plan = broken_off(home)
    outcome = carry_out(plan_of(home, "made", "other"), CountingStorage())
    assert outcome.kept == 0
    [note] = outcome.notes
    assert "was begun as another reshard (adapters was {'" in note
    assert files_of(plan.target) == files_of(home / "unbroken_other")
    assert files_of(home / "unbroken_other") != files_of(home / "unbroken_adapter")


@pytest.mark.parametrize("part", [0.2, 0.5, 0.7, 0.9, 0.99])
def test_a_killed_merge_ends_as_an_unbroken_one(home: Path, part: float) -> None:
    counting = CountingStorage()
    carry_out(plan_of(home, "first", "adapter"), counting)
    place = int(part * len(counting.operations))
    plan = plan_of(home, "made", "adapter")

    def work(send: Send) -> None:
        carry_out(plan, KillingStorage(place, "after"))

    assert run_forked(work).was_killed
    assert part > 0.9 or not plan.target.exists()
    carry_out(plan, CountingStorage())
    assert files_of(plan.target) == files_of(home / "unbroken_adapter")
    assert not plan.target.with_name("made.part").exists()
