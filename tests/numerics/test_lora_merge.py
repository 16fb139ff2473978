"""Adapters that `reshard lora.merge=` and `lora.mode=merge` merge are what PEFT's merge_and_unload makes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_models import logits_of
from lora_cases import (
    NOT_TO_BE_MERGED,
    cases,
    merged_projections,
    projected,
    prompts,
    write_base,
    write_case,
)
from numpy.typing import NDArray
from recording import Run, difference, load

from mindbatch import LLM, DecodingParams
from mindbatch.architecture.stage_cut import cut
from mindbatch.backends.loader import load_weights
from mindbatch.backends.merged_adapter import merge_native
from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.request import RequestOutput
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.kernels.choice import choose_kernels
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import RankPart, Stage, TensorSlice
from peft_folders import TINY, write_adapter
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
    with (
        ModelFolder(base) as folder,
        merge_native(describe(folder.config), folder, open_adapter(adapter)) as loaded,
    ):
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
            np.testing.assert_array_equal(loaded.floats(name, is_widened=False), loaded.floats(name), name)


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


GREEDY = DecodingParams(max_new_tokens=6)


def folders(home: Path, case: str, **options: Any) -> tuple[Path, Path]:
    """The base of a case, converted as the options say, and its adapter."""
    base = write_base(home / "plain", cases()[case]["base"])
    if options:
        reshard(base, home / "base", **options)
        base = home / "base"
    return base, write_case(home / "adapter", case)


def parameters(folder: Path, adapter: Path | None, shard: TensorSlice, stage: Stage, cut_for: Any) -> Any:
    """What a rank loads, by name."""
    kernels = choose_kernels("native", "CPU")
    with ModelFolder(folder, *cut_for) as opened:
        arch = describe(opened.config)
        spec = replace(ModelSpec.of(arch, RankPart(shard)), stage=stage)
        merged = None if adapter is None else merge_native(arch, opened, open_adapter(adapter))
        with merged or nullcontext(opened) as weights:
            loaded = load_weights(spec, weights, kernels)
    return {name: np.asarray(parameter) for name, parameter in loaded.parameters.items()}


@pytest.mark.parametrize("case", ["gpt2_patterns", "llama_saved_both", "qwen2_bias"])
def test_every_rank_loads_its_slice_of_the_merged_model(tmp_path: Path, case: str) -> None:
    """From the whole folder, and from one that was cut for the ranks."""
    initialise("CPU")
    base, adapter = folders(tmp_path, case)
    reshard(base, tmp_path / "merged", adapter)
    reshard(base, tmp_path / "cut", target_model_parallel=2)
    with ModelFolder(base) as folder:
        arch = describe(folder.config)
    [*stages] = cut(tensor_specs(arch), 2)
    for rank in range(2):
        shard = TensorSlice(rank, 2)
        for stage in (*stages, Stage(range(arch.num_layers))):
            expected = parameters(tmp_path / "merged", None, shard, stage, ())
            plain = parameters(base, None, shard, stage, ())
            assert any((expected[name] != plain[name]).any() for name in plain), "the adapter must act"
            sources = [(base, ()), (tmp_path / "cut", (shard,))]
            for source, cut_for in sources:
                found = parameters(source, adapter, shard, stage, cut_for)
                assert found.keys() == expected.keys()
                for name, values in expected.items():
                    np.testing.assert_array_equal(found[name], values, name)


def test_norms_of_whole_rows_are_not_in_a_rank_s_folder(tmp_path: Path) -> None:
    base, adapter = folders(tmp_path, "qwen2_dora", target_model_parallel=2)
    with (
        ModelFolder(base, TensorSlice(0, 2)) as folder,
        pytest.raises(CheckpointError, match="was cut for one rank, and DoRA needs whole rows of"),
    ):
        merge_native(describe(folder.config), folder, open_adapter(adapter))


def test_a_folder_that_has_the_adapter_is_refused(tmp_path: Path) -> None:
    base, adapter = folders(tmp_path, "llama_classic")
    reshard(base, tmp_path / "merged", adapter)
    for mode in ("merge", "live"):
        with pytest.raises(
            ConfigError, match="has this adapter merged already, with scaling 2 .reshard.json"
        ):
            LLM(tmp_path / "merged", lora_adapters={"law": adapter}, lora_mode=mode)


@pytest.mark.slow
def test_merged_rows_are_those_with_the_adapter_beside_the_model(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "law", 8, seed=3)
    texts = ["An increasing sequence: one,", "The number after nine is", "one two three four five"]
    live = load(TINY, first_buckets=(), lora_adapters={"law": adapter})
    merged = load(TINY, first_buckets=(), lora_adapters={"law": adapter}, lora_mode="merge")
    beside = live.generate(texts, adapter="law", params=GREEDY)
    assert tokens_of(merged.generate(texts, params=GREEDY)) == tokens_of(beside)
    assert tokens_of(beside) != tokens_of(live.generate(texts, params=GREEDY)), "the adapter must act"
    assert [each.adapter for each in merged.generate(texts[:2], max_new_tokens=1)] == ["law", "law"]
    prompts = [output.prompt_token_ids for output in beside]
    of_live = logits_of(runner_of(live), [(prompt, 1) for prompt in prompts])
    of_merged = logits_of(runner_of(merged), [(prompt, 0) for prompt in prompts])
    for one, other in zip(of_live, of_merged, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    with pytest.raises(PromptError, match="there is no adapter 'base'; lora.adapters has law"):
        merged.generate(texts[0], adapter="base")


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def runner_of(llm: LLM) -> ModelRunner:
    runner: ModelRunner = llm._model.engine._runner  # type: ignore[attr-defined]
    return runner


@pytest.mark.slow
def test_mindformers_models_are_given_the_merged_weights(tmp_path: Path) -> None:
    """The provider's own network, filled by our reader."""
    base, adapter = folders(tmp_path, "qwen3_attention")
    reshard(base, tmp_path / "merged", adapter)
    options: dict[str, Any] = {"provider": "mindformers", "first_buckets": ()}
    expected = Run(load(tmp_path / "merged", **options), prompts(), GREEDY)
    merged = load(base, lora_adapters={"law": adapter}, lora_mode="merge", **options)
    found = Run(merged, prompts(), GREEDY)
    assert found.tokens == expected.tokens
    assert difference(found.logits, expected.logits) == 0
