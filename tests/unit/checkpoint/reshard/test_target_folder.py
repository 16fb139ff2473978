"""What may be in the target folder of a reshard and beside it: nothing goes that is not its own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.reshard_kills import OTHER_WAYS, SMALL, WAYS, files_of, plan_of
from mindbatch.checkpoint.reshard.carry_out import carry_out
from mindbatch.io.errors import CheckpointError, ConfigError
from reshard_models import write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", SMALL, "BF16")


@pytest.fixture
def target(source: Path, tmp_path: Path) -> Path:
    """A finished reshard."""
    carry_out(plan_of(source, tmp_path / "cut", WAYS))
    return tmp_path / "cut"


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
        carry_out(plan_of(source, target, WAYS))
    assert carry_out(plan_of(source, target, WAYS, gives_way=True)).is_new
    assert files_of(target) == whole


def test_what_only_lacks_its_name_gets_it_only_if_it_is_whole(source: Path, target: Path) -> None:
    whole = files_of(target)
    part = target.rename(target.with_name("cut.part"))
    (part / "rank_0/model.safetensors").unlink()
    outcome = carry_out(plan_of(source, target, WAYS))
    assert (outcome.is_new, outcome.notes) == (True, [])
    assert files_of(target) == whole


def test_a_link_to_a_folder_is_a_foreign_file(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (target / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="holds 'link', which reshard did not write"):
        carry_out(plan_of(source, target, OTHER_WAYS, gives_way=True))
    assert (target / "link").is_symlink()


@pytest.mark.parametrize("is_made", [False, True])
def test_a_source_where_the_target_is_made_is_not_emptied(
    target: Path, tmp_path: Path, is_made: bool
) -> None:
    """Such as what was displaced by a reshard that was killed at its very end."""
    part = target.rename(tmp_path / "new.part")
    if is_made:
        carry_out(plan_of(part, tmp_path / "elsewhere", 1))
        (tmp_path / "elsewhere").rename(tmp_path / "new")
    before = files_of(part)
    with pytest.raises(ConfigError, match="new.part, where the target is made; move the source away"):
        carry_out(plan_of(part, tmp_path / "new", 1))
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
        carry_out(plan, progress=change)
    assert not (tmp_path / "cut").exists()
    if how != "removed":
        outcome = carry_out(plan_of(source.parent, tmp_path / "cut", WAYS))
        assert "the source has changed" in outcome.notes[0]


def test_a_source_with_digests_may_be_touched(source: Path, tmp_path: Path) -> None:
    plan = plan_of(source, tmp_path / "cut", WAYS)
    os.utime(source / "model.safetensors", ns=(0, 0))
    assert carry_out(plan).is_new
