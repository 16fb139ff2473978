"""Reshards of small models: whatever the way there, the same bytes come back; what cannot be is refused."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from each_once import each_once
from mindbatch.checkpoint.reshard.folder import locked
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.tasks.reshard.schema import ReshardConfig, reshard_errors
from reshard_adapters import reshard
from reshard_models import (
    LLAMA,
    MODELS,
    contents,
    flip_a_bit,
    source_shapes_of,
    tensors_of,
    write_model,
    write_tensors,
)

NORM = "model.norm.weight"


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return write_model(tmp_path / "start", LLAMA)


@pytest.mark.parametrize(("model", "dtype"), each_once(MODELS, ["F32", "F16", "BF16"], fast=1))
def test_every_way_leads_back_to_the_same_bytes(tmp_path: Path, model: str, dtype: str) -> None:
    start = write_model(tmp_path / "0", MODELS[model], dtype)
    kinds = ["ckpt", "safetensors", "ckpt", "ckpt", "safetensors", "safetensors"]
    cuts = [(2, 1), (2, 2), (8, 1), (4, 1), (4, 2), (1, 1)]
    for number, ((ways, stages), kind) in enumerate(zip(cuts, kinds, strict=True), 1):
        source, target = tmp_path / str(number - 1), tmp_path / str(number)
        options = {"target_model_parallel": ways, "target_pipeline_stage": stages, "target_format": kind}
        reshard(source, target, **options, verify=True)
        assert len(contents(target)) == ways * stages
    assert contents(target) == contents(start)
    for name in ("config.json", "generation_config.json"):
        assert (target / name).read_bytes() == (start / name).read_bytes()


@pytest.mark.parametrize("kind", ["model.safetensors", "model.ckpt"])
@pytest.mark.parametrize("beside", [True, False])
def test_a_full_file_is_a_source(tmp_path: Path, kind: str, beside: bool) -> None:
    start = write_model(tmp_path / "start", LLAMA, digests=False)
    home = tmp_path / "file"
    home.mkdir()
    write_tensors(home / kind, tensors_of(LLAMA), "F32")
    options: dict[str, Any] = {}
    if beside:
        (home / "config.json").write_bytes((start / "config.json").read_bytes())
    else:
        with pytest.raises(ConfigError, match="no config.json.*source_config=FOLDER"):
            reshard(home / kind, tmp_path / "cut", target_model_parallel=2)
        options["source_config"] = str(start)
    reshard(home / kind, tmp_path / "cut", target_model_parallel=2, **options)
    reshard(tmp_path / "cut", tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(start)


@pytest.mark.parametrize(("dtype", "name"), [("float16", "F16"), ("bfloat16", "BF16"), ("float32", "F32")])
def test_the_dtype_changes_on_the_way_as_at_once(tmp_path: Path, dtype: str, name: str) -> None:
    start = write_model(tmp_path / "start", LLAMA, "F32")
    reshard(start, tmp_path / "cut", target_model_parallel=4, target_dtype=dtype, verify=True)
    _, (rows, _), padded = contents(tmp_path / "cut")[3]["lm_head.weight"]
    assert padded.endswith(bytes(len(padded) // rows)), "its last row is padding"
    reshard(tmp_path / "cut", tmp_path / "whole")
    reshard(start, tmp_path / "at_once", target_dtype=dtype)
    assert contents(tmp_path / "whole") == contents(tmp_path / "at_once")
    (found,) = contents(tmp_path / "whole")
    assert {each[0] for each in found.values()} == {name}
    assert json.loads((tmp_path / "whole/config.json").read_bytes())["torch_dtype"] == dtype


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_a_flipped_bit_of_the_source_is_found_on_the_way(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    model = MODELS[chance.choice(sorted(MODELS))]
    path = write_model(tmp_path / "start", model, "BF16") / "model.safetensors"
    name, shape = chance.choice([*source_shapes_of(model).items()])
    flip_a_bit(path, name, chance.randrange(2 * math.prod(shape)))
    with pytest.raises(CheckpointError, match=f"{path}: tensor '{name}' is damaged"):
        reshard(tmp_path / "start", tmp_path / "cut", target_model_parallel=chance.choice([1, 2, 8]))
    assert not (tmp_path / "cut").exists()


@pytest.mark.slow
def test_several_threads_write_the_same(start: Path, tmp_path: Path) -> None:
    reshard(start, tmp_path / "one", target_model_parallel=4, workers=1)
    reshard(start, tmp_path / "two", target_model_parallel=4, workers=2, verify=True)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert (tmp_path / "two/reshard.json").read_bytes() == (tmp_path / "one/reshard.json").read_bytes()


def test_another_reshard_gives_way_only_when_told_to(start: Path, tmp_path: Path) -> None:
    target = tmp_path / "cut"
    reshard(start, target, target_model_parallel=2)
    with pytest.raises(ConfigError, match="holds another reshard .model_parallel was 2, now 4.*replace=true"):
        reshard(start, target, target_model_parallel=4)
    assert len(contents(target)) == 2
    (target / "rank_1/mine").touch()
    with pytest.raises(ConfigError, match="holds 'rank_1/mine', which reshard did not write"):
        reshard(start, target, target_model_parallel=4, target_replace=True)
    (target / "rank_1/mine").unlink()
    reshard(start, target, target_model_parallel=4, target_replace=True)
    assert len(contents(target)) == 4
    assert sorted(os.listdir(tmp_path)) == ["cut", "start"]


def test_a_folder_of_something_else_is_left_alone(start: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", LLAMA)
    for options in ({}, {"target_replace": True}):
        with pytest.raises(ConfigError, match="exists and was not written by reshard"):
            reshard(start, other, **options)
    (tmp_path / "cut.part").mkdir()
    (tmp_path / "cut.part/mine").touch()
    with pytest.raises(ConfigError, match="cut.part: is not of a reshard"):
        reshard(start, tmp_path / "cut")
    assert (tmp_path / "cut.part/mine").exists()


def test_two_at_once_do_not_mix(start: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.part").mkdir()
    with locked(tmp_path / "cut.part"), pytest.raises(ConfigError, match="another reshard is writing here"):
        reshard(start, tmp_path / "cut")
    reshard(start, tmp_path / "cut")


def test_a_dry_run_writes_nothing(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reshard(start, tmp_path / "cut", target_model_parallel=4, dry_run=True)
    assert os.listdir(tmp_path) == ["start"]
    printed = capsys.readouterr().out
    assert "rank_3/model.safetensors: 30 tensors" in printed
    assert "rank 3: model.embed_tokens.weight of shape [17, 32]: zeros at [[16, 17], [0, 32]]" in printed
    assert "planned and proved: 4 ranks, 30 tensors" in printed


def test_what_the_model_does_not_use_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = write_model(tmp_path / "start", MODELS["tied"], digests=False)
    arrays = tensors_of(MODELS["tied"])
    whole = {**arrays, "lm_head.weight": arrays["model.embed_tokens.weight"]}
    write_tensors(start / "model.safetensors", whole, "F32")
    reshard(start, tmp_path / "cut", target_model_parallel=2)
    assert "left out, for the model does not use them: 'lm_head.weight'" in capsys.readouterr().err
    assert "lm_head.weight" not in contents(tmp_path / "cut")[0]


def test_ranks_that_do_not_fit_are_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target.model_parallel=3: .*allowed for this model: 1, 2, 4, 8"):
        reshard(start, tmp_path / "cut", target_model_parallel=3)
    with pytest.raises(ConfigError, match=r"target.pipeline_stage=4: the model has 3 layers"):
        reshard(start, tmp_path / "cut", target_pipeline_stage=4)
    reshard(start, tmp_path / "cut", target_model_parallel=4)
    with pytest.raises(ConfigError, match="source_pipeline_stage=3: must divide the 4 rank folders"):
        reshard(tmp_path / "cut", tmp_path / "whole", source_pipeline_stage=3)


# ---- what is there already, and ranks that are no sources


@pytest.fixture
def target(start: Path, tmp_path: Path) -> Path:
    """The source in two ranks."""
    reshard(start, tmp_path / "cut", target_model_parallel=2)
    return tmp_path / "cut"


def test_what_is_there_already_stays_and_is_read_back_if_that_is_asked_for(
    start: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    reshard(start, target, target_model_parallel=2, verify=True)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"{target}: was there already, the same reshard, each element read back and compared"
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before
    flip_a_bit(target / "rank_1/model.safetensors", NORM)
    reshard(start, target, target_model_parallel=2)
    assert capsys.readouterr().out == f"{target}: was there already, the same reshard\n"
    with pytest.raises(CheckpointError, match=f"rank_1/model.safetensors: tensor '{NORM}' is not "):
        reshard(start, target, target_model_parallel=2, verify=True)


def test_what_was_finished_but_for_its_name_is_read_back_too(start: Path, target: Path) -> None:
    part = target.rename(target.with_name("cut.part"))
    flip_a_bit(part / "rank_1/model.safetensors", NORM)
    with pytest.raises(CheckpointError, match=f"remove {part}, and the same command makes it anew"):
        reshard(start, target, target_model_parallel=2, verify=True)
    assert not target.exists()


def test_a_dry_run_says_what_the_target_has(
    start: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reshard(start, target, target_model_parallel=2, dry_run=True)
    assert capsys.readouterr().out.endswith(f"{target}: already exists, made by the same reshard\n")
    with pytest.raises(ConfigError, match="holds another reshard"):
        reshard(start, target, target_model_parallel=4, dry_run=True)


def test_one_rank_of_several_is_not_taken_for_a_whole_checkpoint(
    start: Path, target: Path, tmp_path: Path
) -> None:
    for rank in (target / "rank_1", target / "rank_1/model.safetensors"):
        with pytest.raises(ConfigError, match=f"one of 2 rank folders, .* give source={target}, or"):
            reshard(rank, tmp_path / "whole")
    only = tmp_path / "only"
    only.mkdir()
    start.rename(only / "rank_0")
    (only / "rank_0/config.json").unlink()
    reshard(only / "rank_0", tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(only / "rank_0")


def test_a_target_is_not_within_its_source(start: Path) -> None:
    config = ReshardConfig(source=str(start))
    for target in (start / "rank_2", start / "cut/rank_2"):
        config.target.dir = str(target)
        assert [*reshard_errors(config)] == [
            f"target.dir={target}: is within the source {start}, which stays as it is; give another folder"
        ]
    config.target.dir = str(start.with_name(f"{start.name}-cut"))
    assert [*reshard_errors(config)] == []
    config.source, config.target.dir = str(start / "model.safetensors"), str(start / "cut")
    assert [*reshard_errors(config)] == []
