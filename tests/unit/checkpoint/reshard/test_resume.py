"""A reshard that is taken up again keeps what is whole and makes the rest anew; what is not its own stays."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage, KillingStorage
from harness.forks import Send, run_forked
from harness.reshard_kills import OTHER_WAYS, SMALL, WAYS, files_of, plan_of
from mindbatch.checkpoint.formats.stored import FileLayout
from mindbatch.checkpoint.reshard import folder
from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.journal import Journal, read_journal
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError, is_unfinished
from mindbatch.io.storage import Storage, StorageError
from reshard_adapters import reshard, write_adapter_for
from reshard_models import MODELS, flip_a_bit, write_model

# ---- the journal: what a crash has torn is not believed, and goes before more is written

HEAD = {"plan": "digest"}
NOTES = [
    Written(f"rank_{rank}/a.safetensors", f"layer.{rank}", f"{rank:032x}", 10 * rank) for rank in range(3)
]


def write_journal(path: Path) -> bytes:
    journal = Journal(path, Storage(), None, HEAD)
    for note in NOTES:
        journal.append([note])
    journal.close()
    return path.read_bytes()


def test_a_journal_cut_anywhere_has_the_lines_that_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "reshard.journal"
    whole = write_journal(path)
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        content = read_journal(path)
        lines = sum(end <= cut for end in ends)
        if content is None:
            assert lines == 0
        else:
            assert (content.head, content.size) == (HEAD, ends[lines - 1])
            assert list(content.written) == NOTES[: lines - 1]


def test_what_is_torn_goes_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "reshard.journal"
    whole = write_journal(path)
    path.write_bytes(whole[:-1])  # all but the last newline
    content = read_journal(path)
    assert content is not None
    journal = Journal(path, Storage(), content)
    journal.append(NOTES[-1:])
    journal.close()
    assert path.read_bytes() == whole


# ---- what a session finds that goes on


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", SMALL, "BF16")


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> ReshardPlan:
    return plan_of(source, tmp_path / "cut", WAYS)


def unbroken(plan: ReshardPlan) -> tuple[dict[str, bytes], list[str]]:
    """The files that the plan makes, and the operations that it takes."""
    storage = CountingStorage()
    plan = replace(plan, target=plan.target.with_name("unbroken"))
    execute_plan(plan, storage)
    return files_of(plan.target), storage.operations


def broken_off(plan: ReshardPlan) -> Path:
    """The journal of the plan, which the disk has broken off when most of its tensors were noted."""
    place = [i for i, name in enumerate(unbroken(plan)[1]) if name == "write_at"][-4]
    with pytest.raises(StorageError):
        execute_plan(plan, FailingStorage(place, errno.EIO))
    return plan.target.with_name("cut.part") / "reshard.journal"


def test_what_was_noted_is_not_written_again(plan: ReshardPlan) -> None:
    content, storage = read_journal(broken_off(plan)), CountingStorage()
    assert content is not None
    kept = len(content.written)
    outcome = execute_plan(plan, storage)
    assert (outcome.kept, outcome.notes) == (kept, [])
    assert kept > 5
    assert storage.operations.count("write_at") == WAYS + sum(len(j.writings) for j in plan.jobs) - kept
    assert files_of(plan.target) == unbroken(plan)[0]


def test_what_is_not_as_noted_is_written_again(plan: ReshardPlan) -> None:
    part = broken_off(plan).parent
    content = read_journal(part / "reshard.journal")
    assert content is not None
    first = content.written[0]
    flip_a_bit(part / first.file, first.tensor)
    outcome = execute_plan(plan, CountingStorage())
    assert outcome.kept == len(content.written) - 1
    assert outcome.notes == [f"{part}: 1 tensors are not as noted; made anew"]
    assert files_of(plan.target) == unbroken(plan)[0]


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
def test_a_torn_journal_is_mended(plan: ReshardPlan, tear: Callable[[bytes], bytes]) -> None:
    journal = broken_off(plan)
    journal.write_bytes(tear(journal.read_bytes()))
    execute_plan(plan, CountingStorage())
    assert files_of(plan.target) == unbroken(plan)[0]


@pytest.mark.parametrize("merges", [False, True])
def test_another_reshard_begins_anew_and_says_so(source: Path, tmp_path: Path, merges: bool) -> None:
    target, other_ways = tmp_path / "cut", WAYS if merges else OTHER_WAYS
    adapters = [
        write_adapter_for(tmp_path / str(seed), SMALL, seed=seed) if merges else None for seed in (7, 8)
    ]
    first = plan_of(source, target, WAYS, adapter=adapters[0])
    other = plan_of(source, target, other_ways, adapter=adapters[1])
    part = broken_off(first).parent
    (tmp_path / "unbroken").rename(tmp_path / "first")
    outcome = execute_plan(other, CountingStorage())
    assert outcome.kept == 0
    changed = "(adapters was {'" if merges else f"(model_parallel was {WAYS}, now {OTHER_WAYS}); begun anew"
    [note] = outcome.notes
    assert note.startswith(f"{part}: was begun as another reshard {changed}")
    assert not (target / "reshard.journal").exists()
    assert files_of(target) == unbroken(other)[0] != files_of(tmp_path / "first")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({**MODELS["gpt2"], "n_layer": 1}, {"names": "mindformers"}),
        ({**MODELS["qwen2"], "num_hidden_layers": 1}, {"names": "mindformers", "qkv_concat": True}),
        (SMALL, {"adapter": True}),
    ],
)
def test_a_disk_that_fails_anywhere_costs_nothing(
    tmp_path: Path, model: dict[str, Any], options: dict[str, Any]
) -> None:
    """Of fused and transposed tensors, and of weights that an adapter is merged into."""
    source = write_model(tmp_path / "source", model, "BF16")
    if "adapter" in options:
        options = {"adapter": write_adapter_for(tmp_path / "adapter", model)}
    first = plan_of(source, tmp_path / "cut", WAYS, **options)
    expected, operations = unbroken(first)
    num_kept = 0
    for place in range(5, len(operations), 11):
        plan = replace(first, target=tmp_path / f"cut{place}")
        with pytest.raises(StorageError):
            execute_plan(plan, FailingStorage(place, errno.EIO, lasting=True))
        num_kept += execute_plan(plan, CountingStorage()).kept
        assert files_of(plan.target) == expected, place
    assert num_kept > 20


@pytest.mark.parametrize("part", [0.2, 0.5, 0.7, 0.9, 0.99])
def test_a_killed_merge_ends_as_an_unbroken_one(source: Path, tmp_path: Path, part: float) -> None:
    adapter = write_adapter_for(tmp_path / "adapter", SMALL)
    plan = plan_of(source, tmp_path / "cut", WAYS, adapter=adapter)
    expected, operations = unbroken(plan)

    def work(send: Send) -> None:
        execute_plan(plan, KillingStorage(int(part * len(operations)), "after"))

    assert run_forked(work).was_killed
    assert part > 0.9 or not plan.target.exists()
    execute_plan(plan, CountingStorage())
    assert files_of(plan.target) == expected
    assert not plan.target.with_name("cut.part").exists()


def test_an_interrupt_says_that_nothing_is_lost(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mindbatch.checkpoint.reshard.execution._finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reshard(source, tmp_path / "cut")
    assert capsys.readouterr().err == (
        f"mindbatch: {tmp_path}/cut.part: keeps what was finished; the same command goes on\n"
    )


# ---- what may be in the target folder and beside it


@pytest.fixture
def target(plan: ReshardPlan) -> Path:
    """A finished reshard."""
    execute_plan(plan)
    return plan.target


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, cut_off])
@pytest.mark.parametrize("name", ["rank_1/model.safetensors", "config.json"])
def test_a_finished_target_that_is_not_whole_any_more_is_told_and_made_again(
    source: Path, target: Path, name: str, damage: Callable[[Path], None]
) -> None:
    whole = files_of(target)
    damage(target / name)
    with pytest.raises(ConfigError, match=f"is this reshard, but '{name}' is missing or not of the size"):
        execute_plan(plan_of(source, target, WAYS))
    assert execute_plan(plan_of(source, target, WAYS, gives_way=True)).is_new
    assert files_of(target) == whole


def test_what_only_lacks_its_name_gets_it_only_if_it_is_whole(source: Path, target: Path) -> None:
    whole = files_of(target)
    part = target.rename(target.with_name("cut.part"))
    (part / "rank_0/model.safetensors").unlink()
    outcome = execute_plan(plan_of(source, target, WAYS))
    assert (outcome.is_new, outcome.notes) == (True, [])
    assert files_of(target) == whole


def test_a_link_to_a_folder_is_a_foreign_file(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (target / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="holds 'link', which reshard did not write"):
        execute_plan(plan_of(source, target, OTHER_WAYS, gives_way=True))
    assert (target / "link").is_symlink()


@pytest.mark.parametrize("is_made", [False, True])
def test_a_source_where_the_target_is_made_is_not_emptied(
    target: Path, tmp_path: Path, is_made: bool
) -> None:
    """Such as what was displaced by a reshard that was killed at its very end."""
    part = target.rename(tmp_path / "new.part")
    if is_made:
        execute_plan(plan_of(part, tmp_path / "elsewhere", 1))
        (tmp_path / "elsewhere").rename(tmp_path / "new")
    before = files_of(part)
    with pytest.raises(ConfigError, match="new.part, where the target is made; move the source away"):
        execute_plan(plan_of(part, tmp_path / "new", 1))
    assert files_of(part) == before


@pytest.mark.parametrize("how", ["rewritten", "exchanged", "removed"])
def test_a_source_that_changes_meanwhile_makes_no_target(tmp_path: Path, how: str) -> None:
    """Half of the old checkpoint and half of the new one would go together, shape by shape."""
    source = write_model(tmp_path / "source", SMALL, "BF16", digests=False) / "model.safetensors"
    plan = plan_of(source.parent, tmp_path / "cut", WAYS)

    def change(what: str, done: int, total: int) -> None:
        if what != "resharding" or done < total:
            return
        data = bytearray(source.read_bytes())
        data[-1] ^= 1
        if how != "rewritten":
            source.unlink()
        if how != "removed":
            source.write_bytes(data)
        if how == "rewritten":
            os.utime(source, ns=(0, 0))  # another time even where the clock is coarse

    with pytest.raises(CheckpointError, match="model.safetensors: was changed while it was read"):
        execute_plan(plan, progress=change)
    assert not (tmp_path / "cut").exists()
    if how != "removed":
        outcome = execute_plan(plan_of(source.parent, tmp_path / "cut", WAYS))
        assert "the source has changed" in outcome.notes[0]


def test_a_source_with_digests_may_be_touched(source: Path, plan: ReshardPlan) -> None:
    os.utime(source / "model.safetensors", ns=(0, 0))
    assert execute_plan(plan).is_new


def test_a_disk_without_room_leaves_a_reshard_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(folder.os, "statvfs", lambda _: Full)
    with pytest.raises(MindBatchError, match="8,192 bytes are still .* 4,096 are free") as error:
        folder.refuse_without_space(tmp_path, {"a": FileLayout(8192, (), {})})
    assert is_unfinished(error.value)
