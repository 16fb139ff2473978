"""`lora.mode=merge`: what is loaded are the very bits that `reshard lora.merge=` writes."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_models import logits_of
from lora_cases import cases, prompts, write_base, write_case
from recording import Run, difference, load

from mindbatch import LLM, DecodingParams
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.request import RequestOutput
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.kernels.choice import choose_kernels
from mindbatch.models.loader import load_weights
from mindbatch.models.merged_adapter import merge_native
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.stage_cut import cut
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import RankPart, Stage, TensorSlice
from peft_folders import TINY, write_adapter
from reshard_adapters import reshard

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
        plan = None if adapter is None else merge_native(arch, opened, open_adapter(adapter))
        with nullcontext(opened) if plan is None else plan.weights(opened) as weights:
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
