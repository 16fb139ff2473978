"""`mindbatch reshard lora.merge=`: the bits of a merge at once, whatever is cut how."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import transform_ckpt_lora
from each_once import each_once
from mindbatch.checkpoint.reshard import write
from mindbatch.checkpoint.reshard.job import chunks_of
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
from reshard_models import LLAMA, MODELS, contents, stored, tensors_of, write_model, write_tensors

Q0 = "model.layers.0.self_attn.q_proj"
ONE_LAYER = {**LLAMA, "num_hidden_layers": 1}


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
        for target in (1, 4):
            made, whole = tmp_path / f"made{ways}_{target}", tmp_path / f"whole{ways}_{target}"
            reshard(cut, made, adapter, target_model_parallel=target, verify=True)
            reshard(made, whole)
            assert contents(whole) == [expected]


@pytest.mark.slow
def test_stages_and_formats(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", LLAMA, "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    reshard(
        start,
        tmp_path / "cut",
        adapter,
        target_model_parallel=2,
        target_pipeline_stage=3,
        target_format="ckpt",
        verify=True,
        workers=2,
    )
    reshard(tmp_path / "cut", tmp_path / "whole")
    assert contents(tmp_path / "whole") == [merged_at_once(contents(start)[0], adapter)]


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


def test_the_sum_is_peft_s(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", LLAMA)
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    reshard(start, tmp_path / "made", adapter)
    before, pairs = tensors_of(LLAMA), matrices_of(LLAMA, TARGETS["llama"], fan_in_fan_out=False)
    for name, (_, shape, data) in contents(tmp_path / "made")[0].items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        expected = before[name]
        if f"{key}.lora_A.weight" in pairs:
            b, a = (pairs[f"{key}.lora_{which}.weight"] for which in "BA")
            expected = expected + (b @ a) * np.float32(ALPHA / RANK)
        found = np.frombuffer(data, np.float32).reshape(shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_dtype_is_changed_after_the_merge(tmp_path: Path) -> None:
    """One rounding: the sum would be another if the weight, or the sum, were rounded on the way."""
    start = write_model(tmp_path / "start", LLAMA, "F32")
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    reshard(start, tmp_path / "both", adapter, target_model_parallel=2, target_dtype="float16", verify=True)
    reshard(start, tmp_path / "merged", adapter)
    reshard(tmp_path / "merged", tmp_path / "then", target_model_parallel=2, target_dtype="float16")
    assert contents(tmp_path / "both") == contents(tmp_path / "then")


def test_the_same_as_the_tool_with_mindformers_flags(tmp_path: Path) -> None:
    start = write_model(tmp_path / "start", LLAMA, "BF16")
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    pairs = matrices_of(LLAMA, TARGETS["llama"], fan_in_fan_out=False)
    both = {name.removeprefix("base_model.model."): array for name, array in pairs.items()}
    both |= tensors_of(LLAMA)
    write_tensors(tmp_path / "trained.ckpt", {n: stored(a, "BF16") for n, a in both.items()}, "BF16")
    write_tensors(
        adapter / "adapter_model.safetensors", {n: stored(a, "BF16") for n, a in pairs.items()}, "BF16"
    )
    flags = ["--src_ckpt_path_or_dir", str(tmp_path / "trained.ckpt"), "--lora_scaling", str(ALPHA / RANK)]
    assert transform_ckpt_lora.main([*flags, "--dst_ckpt_dir", str(tmp_path / "tool")]) == 0
    reshard(start, tmp_path / "made", adapter)
    assert contents(tmp_path / "made") == contents(tmp_path / "tool")


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
    found = {f"transformer.{name}": held for name, held in contents(tmp_path / "made")[0].items()}
    assert found == expected
    pairs = matrices_of(config, TARGETS["gpt2"], fan_in_fan_out=True)
    short = {name.replace("transformer.", ""): array for name, array in pairs.items()}
    write_tensors(adapter / "adapter_model.safetensors", short, "F32")
    write_tensors(start / "model.safetensors", tensors_of(config), "F32")
    reshard(start, tmp_path / "again", adapter)
    assert contents(tmp_path / "again") == [expected]


def test_a_file_without_config_is_merged_too(tmp_path: Path) -> None:
    write_tensors(tmp_path / "full.ckpt", tensors_of(LLAMA), "F32")
    adapter = write_adapter_for(tmp_path / "adapter", LLAMA)
    reshard(tmp_path / "full.ckpt", tmp_path / "made", adapter)
    assert contents(tmp_path / "made") == [merged_at_once(contents(tmp_path / "full.ckpt")[0], adapter)]


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
        "q_proj": "wq",
        "k_proj": "wk",
        "v_proj": "wv",
        "o_proj": "wo",
        "up_proj": "w3",
        "down_proj": "w2",
    }
    modules |= {"self_attn": "attention", "mlp": "feed_forward", "lora_A.weight": "mindpet_delta_lora_a"}
    modules |= {"lora_B.weight": "mindpet_delta_lora_b", "base_model.model.": ""}
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
