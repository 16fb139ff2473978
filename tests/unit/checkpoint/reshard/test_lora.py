"""`mindbatch reshard lora.merge=`: the bits of a merge at once, whatever is cut how."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from each_once import each_once
from mindbatch.checkpoint.reshard import write
from mindbatch.checkpoint.reshard.job import chunks_of
from mindbatch.config.schema import schema_keys
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.tasks.reshard.schema import ReshardConfig
from reshard_adapters import (
    ALPHA,
    RANK,
    TALL,
    TARGETS,
    matrices_of,
    merged_at_once,
    reshard,
    write_adapter_for,
)
from reshard_models import LLAMA, MODELS, contents, flip_a_bit, tensors_of, write_model, write_tensors


@pytest.mark.parametrize(("dtype", "model"), each_once(["F32", "F16", "BF16"], ["llama", "gpt2"], fast=1))
def test_any_cut_has_the_bits_of_a_merge_at_once(tmp_path: Path, model: str, dtype: str) -> None:
    """Sources with key/value heads on several ranks, fused and transposed weights, a padded vocabulary."""
    start = write_model(tmp_path / "start", MODELS[model], dtype)
    adapter = write_adapter_for(tmp_path / "adapter", MODELS[model])
    expected = merged_at_once(contents(start)[0], adapter)
    assert expected != contents(start)[0]
    for ways in (1, 4, 8):
        cut = tmp_path / f"cut{ways}"
        reshard(start, cut, target_model_parallel=ways)
        for target in ({}, {"target_model_parallel": 4, "target_pipeline_stage": 2, "target_format": "ckpt"}):
            made, whole = tmp_path / f"made{ways}_{len(target)}", tmp_path / f"whole{ways}_{len(target)}"
            reshard(cut, made, adapter, **target, verify=True)
            reshard(made, whole)
            assert contents(whole) == [expected]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("chunk_bytes", [pytest.param(1, marks=pytest.mark.slow), 5000, 10**5, 10**8])
@pytest.mark.parametrize("ways", [1, 4])
def test_any_size_of_bands_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, ways: int
) -> None:
    start = write_model(tmp_path / "start", TALL, "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", TALL)
    monkeypatch.setattr(write, "chunks_of", partial(chunks_of, chunk_bytes=chunk_bytes))
    reshard(start, tmp_path / "cut", adapter, target_model_parallel=ways)
    monkeypatch.undo()
    reshard(tmp_path / "cut", tmp_path / "whole")
    assert contents(tmp_path / "whole") == [merged_at_once(contents(start)[0], adapter)]


def test_only_the_product_is_padded_by_nothing(tmp_path: Path) -> None:
    """The rows of zeros at the end of the head stay zero."""
    start = write_model(tmp_path / "start", LLAMA)
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    reshard(start, tmp_path / "cut", target_model_parallel=4)
    reshard(tmp_path / "cut", tmp_path / "made", adapter, target_model_parallel=4, verify=True)
    dtype, shape, data = contents(tmp_path / "made")[3]["lm_head.weight"]
    assert (dtype, shape) == ("F32", (17, 32))
    assert data[-4 * 32 :] == bytes(4 * 32)
    assert data != contents(tmp_path / "cut")[3]["lm_head.weight"][2]


def test_names_without_the_prefix(tmp_path: Path) -> None:
    """A bare base model takes the adapter of a whole one, and the reverse."""
    config = MODELS["gpt2"]
    start = write_model(tmp_path / "start", config, digests=False)
    adapter = write_adapter_for(tmp_path / "adapter", config)
    expected = merged_at_once(contents(start)[0], adapter)
    bare = {name.removeprefix("transformer."): array for name, array in tensors_of(config).items()}
    write_tensors(start / "model.safetensors", bare, "F32")
    reshard(start, tmp_path / "made", adapter)
    made = {f"transformer.{name}": tensor for name, tensor in contents(tmp_path / "made")[0].items()}
    assert made == expected
    pairs = matrices_of(config, TARGETS["gpt2"], fan_in_fan_out=True)
    short = {name.replace("transformer.", ""): array for name, array in pairs.items()}
    write_tensors(adapter / "adapter_model.safetensors", short, "F32")
    write_tensors(start / "model.safetensors", tensors_of(config), "F32")
    reshard(start, tmp_path / "again", adapter)
    assert contents(tmp_path / "again") == [expected]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("model", "concat"), [("llama", False), ("llama", True), ("gpt2", False)])
def test_mindformers_names_on_either_side(tmp_path: Path, model: str, concat: bool) -> None:
    """Fused tensors whose heads take turns, and matrices that are stored the other way round."""
    start = write_model(tmp_path / "start", MODELS[model], "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", MODELS[model])
    theirs = {"target_names": "mindformers", "target_qkv_concat": concat, "target_model_parallel": 2}
    reshard(start, tmp_path / "theirs", **theirs)
    reshard(tmp_path / "theirs", tmp_path / "made", adapter, verify=True)
    expected = merged_at_once(contents(start)[0], adapter)
    assert contents(tmp_path / "made") == [expected]
    reshard(start, tmp_path / "merged", adapter, **theirs, verify=True)
    reshard(tmp_path / "made", tmp_path / "then", **theirs)
    assert contents(tmp_path / "merged") == contents(tmp_path / "then")


def test_an_adapter_of_mindformers(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", LLAMA)
    ours = write_adapter_for(tmp_path / "adapter", LLAMA)
    modules = {
        "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "up_proj": "w3", "down_proj": "w2",
        "self_attn": "attention", "mlp": "feed_forward", "base_model.model.": "",
        "lora_A.weight": "mindpet_delta_lora_a", "lora_B.weight": "mindpet_delta_lora_b",
    }  # fmt: skip
    renamed = {}
    for name, array in matrices_of(LLAMA, TARGETS["llama"], fan_in_fan_out=False).items():
        for old, new in modules.items():
            name = name.replace(old, new)
        renamed[name] = array
    pattern = "|".join(f".*{name}" for name in ("wq", "wk", "wv", "wo", "w2", "w3", "lm_head"))
    theirs = write_adapter_for(tmp_path / "theirs", LLAMA, target_modules=pattern)
    (theirs / "adapter_model.safetensors").unlink()
    write_tensors(theirs / "adapter_model.ckpt", renamed, "F32")
    reshard(start, tmp_path / "a", ours)
    reshard(start, tmp_path / "b", theirs)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


Q0 = "model.layers.0.self_attn.q_proj"
ONE_LAYER = {**LLAMA, "num_hidden_layers": 1}


# ---- what tells one merge from another


def test_another_adapter_is_another_reshard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    one, other = (write_adapter_for(tmp_path / f"a{seed}", ONE_LAYER, seed=seed) for seed in (1, 2))
    third = write_adapter_for(tmp_path / "a3", ONE_LAYER, seed=1, lora_alpha=ALPHA + 1)
    target = tmp_path / "made"
    reshard(start, target, one)
    reshard(start, target, one)
    assert "was there already, the same reshard" in capsys.readouterr().out
    fourth = write_adapter_for(tmp_path / "a4", ONE_LAYER, seed=1, alpha_pattern={"q_proj": ALPHA + 1})
    for adapter in (None, other, third, fourth):
        with pytest.raises(ConfigError, match=r"holds another reshard \(adapter(s|_scalings) was"):
            reshard(start, target, adapter)
    reshard(start, target, other, target_replace=True)
    assert contents(target) == [merged_at_once(contents(start)[0], other)]


@pytest.mark.parametrize("between", [0, 1])
def test_an_adapter_is_not_merged_twice(tmp_path: Path, between: int) -> None:
    """Also where the checkpoint was cut in between, the folder of the adapter moved, its scaling changed."""
    start = write_model(tmp_path / "start", ONE_LAYER)
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    other = write_adapter_for(tmp_path / "other", ONE_LAYER, seed=2)
    reshard(start, tmp_path / "step0", adapter)
    for step in range(between):
        reshard(tmp_path / f"step{step}", tmp_path / f"step{step + 1}", target_model_parallel=2)
    last = tmp_path / f"step{between}"
    moved = write_adapter_for(tmp_path / "moved", ONE_LAYER, lora_alpha=1)
    message = f"lora.merge={moved}: {last} has this adapter merged already, with scaling 2 "
    with pytest.raises(ConfigError, match=message):
        reshard(last, tmp_path / "twice", moved)
    assert not list(tmp_path.glob("twice*"))
    reshard(last, tmp_path / "both", other)
    for file in (tmp_path / "both", tmp_path / "both/model.safetensors"):
        for again in (adapter, other):
            with pytest.raises(ConfigError, match="merged already"):
                reshard(file, tmp_path / "twice", again)


# ---- what is refused before anything is written


def refused(tmp_path: Path, message: str, adapter: Path, source: Path | None = None, **options: Any) -> None:
    start = source or write_model(tmp_path / "start", ONE_LAYER)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        reshard(start, tmp_path / "made", adapter, **options)
    assert not list(tmp_path.glob("made*"))


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    deeper = write_adapter_for(tmp_path / "deeper", LLAMA)
    refused(tmp_path, "the model has no 'model.layers.1.self_attn.q_proj.weight'", deeper)
    wider = write_adapter_for(tmp_path / "wider", {**ONE_LAYER, "hidden_size": 48})
    refused(tmp_path, r"are for a weight of \[48, 48\]; .* has \[32, 32\]", wider, tmp_path / "start")


def test_weights_that_are_no_floats(tmp_path: Path) -> None:
    arrays = {name: array.astype(np.float64) for name, array in tensors_of(ONE_LAYER).items()}
    write_tensors(tmp_path / "full.ckpt", arrays, "F64")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    refused(tmp_path, f"'{Q0}.weight' is F64, to which nothing", adapter, tmp_path / "full.ckpt")


def test_the_scaling_is_given_where_the_config_has_none(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER)
    said = write_adapter_for(tmp_path / "said", ONE_LAYER, lora_alpha=0.7 * RANK)
    unsaid = write_adapter_for(tmp_path / "unsaid", ONE_LAYER, lora_alpha=None)
    refused(tmp_path, "lora_alpha=null: must be a number above 0", unsaid, start)
    refused(tmp_path, r"says the scaling 0.7 .*, given was 2; remove one", said, start, scaling=2.0)
    expected = [merged_at_once(contents(start)[0], said)]
    reshard(start, tmp_path / "a", unsaid, scaling=0.7)
    reshard(start, tmp_path / "b", said, scaling=0.7)
    (unsaid / "adapter_config.json").unlink()
    refused(tmp_path, "adapter_config.json: missing", unsaid, start)
    reshard(start, tmp_path / "c", unsaid, scaling=0.7)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c") == expected


def test_options_without_effect() -> None:
    config, keys = ReshardConfig(), schema_keys(ReshardConfig)
    config.lora.scaling = 0.0
    lines = [*config.all_errors(keys)]
    assert lines[0].startswith("lora.scaling=0.0: must be a number other than 0")
    assert lines[1].startswith("lora.scaling=0.0: has no effect without lora.merge")
    config.lora.merge, config.lora.scaling = "adapter", 1.0
    config.target.overflow = "infinity"
    assert [*config.all_errors(keys)] == []


# ---- what is found on the way


def test_sums_that_are_too_large_are_refused_by_name(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", ONE_LAYER, "F16")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER, factor=1e5)
    with pytest.raises(CheckpointError, match="tensor '.*.weight': .* values are too large for F16"):
        reshard(start, tmp_path / "made", adapter)
    assert not (tmp_path / "made").exists()
    reshard(start, tmp_path / "made", adapter, target_overflow="infinity", verify=True)
    huge = write_adapter_for(tmp_path / "huge", ONE_LAYER, factor=5e37)
    with pytest.raises(CheckpointError, match="their product has values that are too large for F32"):
        reshard(start, tmp_path / "other", huge)


def test_a_damaged_source_is_still_found(tmp_path: Path) -> None:
    """The digests are of the stored bytes."""
    start = write_model(tmp_path / "start", ONE_LAYER, "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", ONE_LAYER)
    flip_a_bit(start / "model.safetensors", f"{Q0}.weight", 100)
    with pytest.raises(CheckpointError, match=f"tensor '{Q0}.weight' is damaged"):
        reshard(start, tmp_path / "made", adapter, target_model_parallel=2)
