"""Rank folders that hold a whole checkpoint each: told from slices, compared, and read once."""

import shlex
import shutil
from pathlib import Path

import pytest

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.tensor_set import open_source, seem_copies
from mindbatch.config.paths import model_folder_fault
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.foreign_formats import reshard_command
from mindbatch.parallel.topology import TensorSlice
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import LLAMA, contents, write_model


def reshard(source: Path, target: Path, model_parallel: int = 1) -> Path:
    config = ReshardConfig(source=str(source))
    config.target.dir, config.target.model_parallel = str(target), model_parallel
    assert run(config) == 0
    return target


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", LLAMA, "F32")


@pytest.fixture
def copies(tmp_path: Path, whole: Path) -> Path:
    """As a data-parallel training saves them: the whole model for each rank, config.json beside."""
    home = tmp_path / "copies"
    for rank in range(2):
        (home / f"rank_{rank}").mkdir(parents=True)
        shutil.copy(whole / "model.safetensors", home / f"rank_{rank}")
    shutil.copy(whole / "config.json", home)
    return home


def test_copies_are_read_once(
    tmp_path: Path, whole: Path, copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = reshard(copies, tmp_path / "made")
    assert contents(made) == contents(reshard(whole, tmp_path / "other"))
    said = capsys.readouterr().err
    assert (
        f"{copies}: the rank folders hold copies of one checkpoint, all the same; the first is read" in said
    )


def test_slices_are_no_copies(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = reshard(whole, tmp_path / "cut", model_parallel=2)
    (cut / "reshard.json").unlink()
    with open_source(cut) as source:
        assert not seem_copies(source.ranks)
    reshard(cut, tmp_path / "made")
    assert "copies" not in capsys.readouterr().err


def test_a_copy_that_differs_is_named(tmp_path: Path, copies: Path) -> None:
    path = copies / "rank_1/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rank_1/model\.safetensors: tensor '[\w.]+' is not as in "):
        reshard(copies, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_copies_are_not_run_as_slices(copies: Path) -> None:
    expected = (
        f"{copies}: its 2 rank folders hold copies of one checkpoint; make one model of them: `mindbatch "
    )
    for needed in (TensorSlice(0, 2), TensorSlice(0, 1)):
        with pytest.raises(ConfigError) as error:
            ModelFolder(copies, needed)
        assert error.value.faults[0].startswith(expected)


@pytest.mark.parametrize("name", ["copies", "it's a folder"])
def test_the_command_is_as_a_shell_takes_it(
    tmp_path: Path, copies: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copies.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    (home / "config.json").unlink()
    assert (model_folder_fault(home) or "").startswith(
        "holds rank folders of a checkpoint and no config.json; "
    )
    assert "source_config=MODEL_FOLDER" in reshard_command(home)
    shutil.copy(tmp_path / "model/config.json", tmp_path)
    (tmp_path / "whole").mkdir()
    words = shlex.split(reshard_command(home))
    assert [word.partition("=")[0] for word in words[2:]] == ["source", "source_config", "target.dir"]
    assert f"{name}_whole" in words[-1]
