"""Rank folders: of shards, read as they are or refused; or of copies of a whole checkpoint, read once."""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.architecture.tensor_spec import shard_specs, source_shapes
from mindbatch.backends import native
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut, match_tensors
from mindbatch.checkpoint.folders.resharded import reshard_command
from mindbatch.checkpoint.folders.tensor_set import open_source, seem_copies
from mindbatch.config.paths import model_folder_error
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import WHOLE, RankPart, TensorSlice
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import LLAMA, MODELS, contents, write_model


def reshard(source: Path, target: Path, **options: Any) -> Path:
    config = ReshardConfig(source=str(source))
    config.target.dir = str(target)
    for name, value in options.items():
        setattr(config.target, name, value)
    assert run(config) == 0
    return target


def cut(folder: Path, model: dict[str, Any] = LLAMA, dtype: str = "F32", **target: Any) -> Path:
    return reshard(write_model(folder / "whole", model, dtype), folder / "cut", **target)


@pytest.mark.parametrize("model", MODELS)
def test_specs_of_a_rank_are_its_tensors(tmp_path: Path, model: str) -> None:
    home = cut(tmp_path, MODELS[model], model_parallel=8)
    specs = tensor_specs(describe(MODELS[model], to_be_run=False))
    for rank in range(8):
        piece = TensorSlice(rank, 8)
        own = shard_specs(specs, piece)
        with ModelFolder(home, piece) as opened:
            assert match_tensors(source_shapes(own), opened) == []
        assert [spec.local_outputs(TensorSlice()) for spec in own] == [
            spec.local_outputs(piece) for spec in specs
        ]


def refusal(home: Path, rank: int = 0, size: int = 2) -> str:
    with pytest.raises(CheckpointError) as error:
        ModelFolder(home, TensorSlice(rank, size))
    assert len(error.value.lines) == 1
    return error.value.lines[0]


def cut_refusal(home: Path, rank: TensorSlice, stages: int = 1) -> str:
    with pytest.raises(ConfigError) as error:
        ModelFolder(home, rank, stages=stages)
    (problem,) = error.value.lines
    return problem


def test_another_cut_is_refused_with_the_keys_that_fit(tmp_path: Path) -> None:
    home = cut(tmp_path, model_parallel=4)
    whole = f"make a whole one: `mindbatch reshard source={home} target.dir=whole`"
    of_four = f"{home}: was cut for 4 ranks (model_parallel=4); requested: "
    assert cut_refusal(home, WHOLE) == (
        f"{of_four}1 rank (model_parallel=1); give parallel.model_parallel=4, or {whole}"
    )
    assert cut_refusal(home, TensorSlice(0, 2), stages=2) == (
        f"{of_four}2 stages x 2 slices (pipeline_stage x model_parallel); give parallel.model_parallel=4, or "
        f"{whole}"
    )
    (home / "reshard.json").unlink()  # the number of folders tells as well
    assert cut_refusal(home, TensorSlice(0, 2)) == (
        f"{home}: has 4 rank folders and no reshard.json that says how they were cut; requested: 2 ranks "
        f"(model_parallel=2); {whole}"
    )


def test_stages_are_refused_with_the_keys_that_fit(tmp_path: Path) -> None:
    home = cut(tmp_path, model_parallel=2, pipeline_stage=3)
    fault = cut_refusal(home, TensorSlice(0, 2))
    assert fault.startswith(f"{home}: was cut for 3 stages x 2 slices (pipeline_stage x model_parallel); ")
    assert "; give parallel.model_parallel=2 parallel.pipeline_stage=3, or make a whole one: " in fault


def test_other_names_are_refused(tmp_path: Path) -> None:
    home = cut(tmp_path, model_parallel=2)
    marker = json.loads((home / "reshard.json").read_text())
    marker["settings"]["names"] = "mindformers"
    (home / "reshard.json").write_text(json.dumps(marker))
    assert "has names='mindformers'" in refusal(home)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_missing_rank_is_refused_by_all_others(tmp_path: Path, lost: int) -> None:
    home = cut(tmp_path, model_parallel=4)
    shutil.rmtree(home / f"rank_{lost}")
    expected = "3 of the 4 ranks that reshard.json speaks of" if lost == 3 else f"ranks are missing: {lost};"
    assert expected in refusal(home, 2, 4)


def test_a_whole_folder_is_refused(tmp_path: Path) -> None:
    cut(tmp_path, model_parallel=2)
    assert "no rank_0, rank_1 ..." in refusal(tmp_path / "whole")
    with pytest.raises(ConfigError, match="no such folder"):
        ModelFolder(tmp_path / "nowhere", TensorSlice(0, 2))


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    home = cut(tmp_path, model_parallel=2)
    (home / "reshard.journal").touch()
    assert "not finished" in refusal(home)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "rank_0/digests.json"])
def test_a_refused_folder_is_closed_again(tmp_path: Path, name: str) -> None:
    home = cut(tmp_path, model_parallel=2)
    content = json.loads((home / name).read_bytes())
    content["heads"] = {"model.safetensors": "0" * 64}
    (home / name).write_bytes(json.dumps(content).encode() if "digests" in name else b"{")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointError) as refused:
        ModelFolder(home, TensorSlice(0, 2))
    assert refused.value.lines
    assert len(os.listdir("/proc/self/fd")) == before


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


@pytest.mark.parametrize("names", ["hf", "mindformers"])
@pytest.mark.parametrize("part", [RankPart(), RankPart(TensorSlice(1, 2)), RankPart(stage=1, stages=2)])
def test_copies_are_run_as_the_whole_model(
    tmp_path: Path, whole: Path, copies: Path, names: str, part: RankPart
) -> None:
    """As MindFormers runs them data-parallel, and divided in any way, for each holds the whole."""
    if names == "mindformers":
        (file,) = reshard(whole, tmp_path / "named", names=names, format="ckpt").glob("*.ckpt")
        for rank in range(2):
            (copies / f"rank_{rank}/model.safetensors").unlink()
            shutil.copy(file, copies / f"rank_{rank}/gpt-1_10.ckpt")
    assert not is_cut(copies)
    opened, spec = native.open_folder(copies, "auto", IgnoredKeys(), part)
    expected, expected_spec = native.open_folder(whole, "auto", IgnoredKeys(), part)
    with opened, expected:
        assert spec == expected_spec
        assert opened.notes == (
            f"{copies}: its rank folders hold copies of one checkpoint; the first is read",
        )
        assert {*opened.names} == {*expected.names}
        for name in expected.names:
            assert np.array_equal(opened.floats(name), expected.floats(name))
            assert opened.floats(name, rows=slice(1, 3)).tobytes() == expected.floats(name)[1:3].tobytes()


def test_damage_of_the_copy_that_is_read_is_told(copies: Path) -> None:
    for rank in range(2):
        path = copies / f"rank_{rank}/model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"rank_0/model\.safetensors"):
        native.open_folder(copies, "auto", IgnoredKeys(), RankPart())


@pytest.mark.parametrize("name", ["copies", "it's a folder"])
def test_the_command_is_as_a_shell_takes_it(
    tmp_path: Path, copies: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copies.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    (home / "config.json").unlink()
    assert (model_folder_error(home) or "").startswith(
        "holds rank folders of a checkpoint and no config.json; "
    )
    assert "source_config=MODEL_FOLDER" in reshard_command(home)
    shutil.copy(tmp_path / "model/config.json", tmp_path)
    (tmp_path / "whole").mkdir()
    words = shlex.split(reshard_command(home))
    assert [word.partition("=")[0] for word in words[2:]] == ["source", "source_config", "target.dir"]
    assert f"{name}_whole" in words[-1]
