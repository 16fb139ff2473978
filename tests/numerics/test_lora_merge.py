"""Adapters merged by `reshard lora.merge=` are what PEFT's merge_and_unload makes of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from lora_cases import (
    NOT_TO_BE_MERGED,
    base_logits,
    cases,
    live_logits,
    merged_logits,
    merged_projections,
    prefixes,
    projected,
    prompts,
    write_base,
    write_case,
)
from numpy.typing import NDArray
from recording import Run, load

from mindbatch import DecodingParams
from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.io.errors import CheckpointError
from mindbatch.models.merged_adapter import merge_native
from mindbatch.models.registry import describe
from reshard_adapters import reshard

MERGED = [case for case in cases() if case not in NOT_TO_BE_MERGED]


def merged_folder(folder: Path, case: str) -> Path:
    """The base with the adapter merged into it."""
    base = write_base(folder / "base", cases()[case]["base"])
    reshard(base, folder / "merged", write_case(folder / "adapter", case))
    return folder / "merged"


def tensors_of(folder: Path) -> dict[str, NDArray[np.float32]]:
    model = ModelFolder(folder)
    return {name: model.floats(name) for name in model.names}


@pytest.mark.fast_cases(16)
@pytest.mark.parametrize("case", MERGED)
def test_merged_weights_are_peft_s(tmp_path: Path, case: str) -> None:
    merged, base = tensors_of(merged_folder(tmp_path, case)), tensors_of(tmp_path / "base")
    expected = merged_projections(case)
    for name, tensor in merged.items():
        if name in expected:
            assert np.abs(projected(tensor) - expected[name]).max() <= 2e-5, name
        else:
            np.testing.assert_array_equal(tensor, base[name], name)
    with merged_on_load(tmp_path / "base", tmp_path / "adapter") as loaded:
        for name, whole in merged.items():
            regions_are(loaded, name, whole)


@contextmanager
def merged_on_load(base: Path, adapter: Path) -> Iterator[StoredWeights]:
    """What `lora.mode=merge` reads."""
    with ModelFolder(base) as folder:
        plan = merge_native(describe(folder.config), folder, open_adapter(adapter))
        with plan.weights(folder) as loaded:
            yield loaded


def regions_are(loaded: StoredWeights, name: str, whole: NDArray[np.float32]) -> None:
    """Any region of a tensor has the bits that a reshard has written."""
    np.testing.assert_array_equal(loaded.floats(name), whole, name)
    third = slice(len(whole) // 3, len(whole) // 3 * 2)
    np.testing.assert_array_equal(loaded.floats(name, rows=third), whole[third], name)
    if whole.ndim == 2:
        half = slice(whole.shape[1] // 2, whole.shape[1])
        np.testing.assert_array_equal(loaded.floats(name, rows=third, columns=half), whole[third, half], name)


def test_sums_of_a_model_in_half_precision_are_rounded_once(tmp_path: Path) -> None:
    """By who keeps them: what is read is float32, as it is before a reshard writes it."""
    base = write_base(tmp_path / "plain", "llama")
    reshard(base, tmp_path / "base", target_dtype="bfloat16")
    adapter = write_case(tmp_path / "adapter", "llama_all_linear")
    reshard(tmp_path / "base", tmp_path / "merged", adapter)
    with merged_on_load(tmp_path / "base", adapter) as loaded:
        for name, tensor in tensors_of(tmp_path / "merged").items():
            rounded, _ = converted(loaded.floats(name), "F32", "BF16")
            np.testing.assert_array_equal(rounded, tensor.view(np.uint32) >> 16, name)


@pytest.mark.parametrize("case", NOT_TO_BE_MERGED)
def test_what_is_not_merged_is_refused(tmp_path: Path, case: str) -> None:
    reason = "the model has no .*_proj.bias' to add" if "bias" in case else "are one tensor of this model"
    with pytest.raises(CheckpointError, match=reason):
        merged_folder(tmp_path, case)
    with (
        pytest.raises(CheckpointError, match=reason),
        merged_on_load(tmp_path / "base", tmp_path / "adapter"),
    ):
        pass


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in ("gpt2_r1", "llama_classic") else [pytest.mark.on_demand])
        for case in MERGED
    ],
)
def test_logits_of_merged_folders_are_peft_s(tmp_path: Path, case: str) -> None:
    run = Run(load(merged_folder(tmp_path, case)), prompts(), DecodingParams(max_new_tokens=1))
    ours = np.stack([run.logits[prefix] for prefix in prefixes()])
    assert np.abs(ours - merged_logits(case)).max() <= 1e-4


def test_recorded_merges_are_the_adapters_beside_the_base() -> None:
    """But for those that PEFT merges into a weight that two modules share, unties, or cannot merge."""
    others = {case for case, described in cases().items() if not described.get("merged_is_live")}
    untied = {case for case, described in cases().items() if described.get("unties")}
    assert others | untied == NOT_TO_BE_MERGED.keys()
    for case in cases().keys() - others:
        assert np.abs(merged_logits(case) - live_logits(case)).max() <= 5e-5


def test_every_adapter_acts_in_another_way() -> None:
    seen: dict[bytes, str] = {}
    for case, described in cases().items():
        live = live_logits(case)
        assert np.abs(live - base_logits(described["base"])).max() > 0.1
        assert seen.setdefault(live.tobytes(), case) == case


def test_forms_and_ranks_are_many() -> None:
    assert len(cases()) >= 40
    assert {described["base"] for described in cases().values()} == {
        "gpt2", "gpt2_scaled", "llama", "qwen2", "qwen3", "mistral",
    }  # fmt: skip
    ranks = {described["config"]["r"] for described in cases().values()}
    assert {1, 2, 3, 64, 256} <= ranks
    acting = {key for described in cases().values() for key, value in described["config"].items() if value}
    assert acting >= {
        "alpha_pattern", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out", "layers_to_transform",
        "lora_bias", "modules_to_save", "rank_pattern", "use_dora", "use_rslora",
    }  # fmt: skip
