"""The Ascend kernels over stand-ins for its operators give the reference kernels' logits, step by step.

The stand-ins compute what the documentation says, in float32 on a CPU: so the layouts, masks, lengths and the
order of arguments are proved, and the operators themselves are not.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import descriptions, write_folder
from type_cases import description_of

import ascend_operators
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.model_runner import ModelRunner
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.kernels.ascend import step as ascend_step
from mindbatch.kernels.ascend.graphs import AscendGraph
from mindbatch.kernels.ascend.kernels import AscendKernels
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import FLOAT16, FLOAT32
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.models import native
from mindbatch.models.loader import load_weights
from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.registry import describe
from mindbatch.parallel.context import initialise

PARAMS = DecodingParams(max_new_tokens=1)
SETTINGS = EngineSettings(batch_size=8, seq_length=64, block_size=16, num_blocks=12, max_batched_tokens=64)
PROMPTS = ([*range(1, 24)], [30, 31, 32], [*range(40, 57)])
TABLES = ([4, 0], [7], [2, 5])
# (first, one past the last) position of each prompt in the step
STEPS = {
    "prompts": ((0, 20), (0, 1), (0, 16)),
    "chunks": ((20, 22), (1, 2), (16, 17)),
    "decoding": ((22, 23), (2, 3), None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    initialise("CPU")
    return tmp_path_factory.mktemp("ascend")


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ascend_operators.put_in(monkeypatch)
    return iter(())


MORE_CASES = ("gpt2", "qwen3", "gemma", "qwen2", "gemma2", "falcon_alibi")
MIXED = ("qwen2", "gemma2", "gpt_oss")
"""Their layers differ."""
_SECOND_LAYER = re.compile(r"(layers|h)\.1\.")


def one_layer(case: str) -> dict[str, Any]:
    """The model of a case with its first block alone."""
    description = description_of(case)
    key = "n_layer" if "n_layer" in description["config"] else "num_hidden_layers"
    tensors = {name: each for name, each in description["tensors"].items() if not _SECOND_LAYER.search(name)}
    return description | {"config": description["config"] | {key: 1, "layer_types": None}, "tensors": tensors}


def step_of(spans: tuple[tuple[int, int] | None, ...]) -> Step:
    scheduled = []
    for number, (prompt, table, span) in enumerate(zip(PROMPTS, TABLES, spans, strict=True)):
        if span is not None:
            row = Row(PARAMS, tuple(prompt), [], (), number)
            sequence = Sequence(row, None, block_table=list(table))
            request = Request(str(number), tuple(prompt), PARAMS)
            group = SequenceGroup(request, strategy_for(PARAMS), [sequence], 99)
            scheduled.append(ScheduledTokens(group, sequence, *span, span[1] - span[0]))
    return Step(scheduled, num_tokens=sum(tokens.stop - tokens.start for tokens in scheduled))


def logits(model: ModelFolder, kernels: Kernels) -> dict[str, np.ndarray]:
    """Of every token of each step, one after another over one cache."""
    geometry = CacheGeometry(SETTINGS.num_blocks, SETTINGS.block_size)
    runner = ModelRunner(
        native.load(ModelSpec.of(describe(model.config)), model, kernels, geometry), SETTINGS
    )
    found = {}
    for name, spans in STEPS.items():
        step = step_of(spans)
        found[name] = runner.run(step).logits(range(step.num_tokens))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    "case",
    [
        *("llama3", "mistral", "bloom", "qwen3_moe", "gpt_oss"),
        *(pytest.param(case, marks=pytest.mark.on_demand) for case in MORE_CASES),
    ],
)
def test_logits_are_the_references(case: str, folder: Path) -> None:
    """llama3 and gemma have heads that FlashAttentionScore takes; prompts of others go through the cache.

    Those of gemma2, gpt_oss and falcon_alibi are computed by plain operators.
    mistral and the second layer of qwen2 have a window that hides most of a prompt; bloom has ALiBi.
    """
    write_folder(folder / case, description_of(case) if case in MIXED else one_layer(case))
    with ModelFolder(str(folder / case)) as model:
        wanted = logits(model, choose_kernels("auto", "CPU"))
        found = logits(model, AscendKernels(FLOAT32))
    for name, expected in wanted.items():
        np.testing.assert_allclose(found[name], expected, atol=2e-4, err_msg=name)


def test_the_steps_are_of_every_kind() -> None:
    def kind(name: str) -> str:
        spans = [span for span in STEPS[name] if span is not None]
        return ascend_step.shape_of(spans, lambda tokens: 64, 64, flash=True).graph

    assert [kind(name) for name in STEPS] == [ascend_step.PROMPTS, ascend_step.CHUNKS, ascend_step.TOKENS]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_rounded_to_the_type(dtype: str, folder: Path) -> None:
    """To the nearest, ties to even: as MindSpore converts."""
    write_folder(folder / dtype, descriptions()["llama"])
    kernels = choose_kernels("auto", "Ascend", dtype=dtype)
    with ModelFolder(str(folder / dtype)) as model:
        arch = describe(model.config)
        half = load_weights(ModelSpec.of(arch), model, kernels)
        full = load_weights(ModelSpec.of(arch), model, ReferenceKernels())
    for name, parameter in full.parameters.items():
        found = half.get(name).asnumpy()
        assert found.dtype.name == dtype
        np.testing.assert_array_equal(found, parameter.astype(found.dtype))


def test_numbers_beyond_float16_are_refused(folder: Path) -> None:
    description = descriptions()["llama"]
    shape, _ = description["tensors"]["model.norm.weight"]
    tensors = description["tensors"] | {"model.norm.weight": [shape, 1e6]}
    write_folder(folder / "large", description | {"tensors": tensors})
    with (
        ModelFolder(str(folder / "large")) as model,
        pytest.raises(CheckpointError, match="norm.weight.* beyond float16; allowed: model.dtype=bfloat16"),
    ):
        load_weights(ModelSpec.of(describe(model.config)), model, AscendKernels(FLOAT16))


@pytest.mark.parametrize(("name", "dtype"), [("native", "auto"), ("reference", "auto"), ("auto", "float32")])
def test_other_kernels_and_float32_are_refused(name: str, dtype: str) -> None:
    with pytest.raises(ConfigError, match="not with runtime.device_target=Ascend"):
        choose_kernels(name, "Ascend", dtype=dtype)
    assert choose_kernels("auto", "Ascend").float_type.name == "bfloat16"


def test_the_graph_names_its_inputs_as_the_operators_look_them_up() -> None:
    """PagedAttention and FlashAttentionScore read two of them on the host, by name."""
    names = [*inspect.signature(AscendGraph.construct).parameters][1:]
    assert names == [*ascend_step.AscendBatch._fields]
    assert {"batch_valid_length", "q_seq_lens"} <= {*names}
