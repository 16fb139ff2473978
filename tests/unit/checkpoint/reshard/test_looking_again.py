"""What is there already and what is asked of it: verify=true, dry_run=true, and ranks that are no sources."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.tasks.reshard.schema import ReshardConfig, reshard_faults
from mindbatch.tasks.reshard.task import run
from reshard_models import LLAMA, contents, write_model


def settings(source: Path, target: Path, ways: int = 1, **options: Any) -> ReshardConfig:
    config = ReshardConfig(source=str(source), **options)
    config.target.dir, config.target.model_parallel = str(target), ways
    return config


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", LLAMA)


def change_a_bit(path: Path, name: str) -> None:
    """In the contents of a tensor."""
    with open_source(path) as opened:
        (extent,) = opened.ranks[0].info(name).extents
    data = bytearray(path.read_bytes())
    data[extent.offset] ^= 1
    path.write_bytes(data)


def test_what_is_there_already_is_read_back_if_that_is_asked_for(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "cut"
    assert run(settings(source, target, 2)) == 0
    assert run(settings(source, target, 2, verify=True)) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"{target}: was there already, the same reshard, each element read back and compared"
    change_a_bit(target / "rank_1/model.safetensors", "model.norm.weight")
    assert run(settings(source, target, 2)) == 0
    assert capsys.readouterr().out.endswith("was there already, the same reshard\n")
    with pytest.raises(CheckpointError, match="rank_1/model.safetensors: tensor 'model.norm.weight' is not "):
        run(settings(source, target, 2, verify=True))


def test_what_was_finished_but_for_its_name_is_read_back_too(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, part = tmp_path / "cut", tmp_path / "cut.part"
    assert run(settings(source, target, 2)) == 0
    target.rename(part)
    change_a_bit(part / "rank_1/model.safetensors", "model.norm.weight")
    with pytest.raises(CheckpointError, match=f"remove {part}, and the same command makes it anew"):
        run(settings(source, target, 2, verify=True))
    assert not target.exists()


def test_a_dry_run_says_what_the_target_has(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "cut"
    assert run(settings(source, target, 2)) == 0
    assert run(settings(source, target, 2, dry_run=True)) == 0
    assert capsys.readouterr().out.endswith(f"{target}: is there already, the same reshard\n")
    with pytest.raises(ConfigError, match="holds another reshard"):
        run(settings(source, target, 4, dry_run=True))


def test_one_rank_of_several_is_not_taken_for_a_whole_checkpoint(source: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    assert run(settings(source, cut, 2)) == 0
    for rank in (cut / "rank_1", cut / "rank_1/model.safetensors"):
        with pytest.raises(ConfigError, match=f"one of 2 rank folders, .* give source={cut}, or"):
            run(settings(rank, tmp_path / "whole"))
    only = tmp_path / "only"
    only.mkdir()
    source.rename(only / "rank_0")
    (only / "rank_0/config.json").unlink()
    assert run(settings(only / "rank_0", tmp_path / "whole")) == 0
    assert contents(tmp_path / "whole") == contents(only / "rank_0")


def test_a_target_is_not_within_its_source(source: Path) -> None:
    for target in (source / "rank_2", source / "cut/rank_2"):
        (fault,) = reshard_faults(settings(source, target))
        assert fault == (
            f"target.dir={target}: is within the source {source}, which stays as it is; give another folder"
        )
    assert [*reshard_faults(settings(source / "model.safetensors", source / "cut"))] == []
    assert [*reshard_faults(settings(source, source.with_name(f"{source.name}-cut")))] == []
