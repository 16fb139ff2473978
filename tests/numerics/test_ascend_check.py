"""Ascend's kernels over stand-ins of its operators, and scripts/ascend_check.sh: its records and judgement.

scripts/compile_for_ascend.sh runs what compiles every kernel, and the script.
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn
from model_folders import descriptions, write_folder

import ascend_operators
import simulated_kernels
from ascend_check import operators, worker
from ascend_check.models import CONFIGS, MINDFORMERS_CONFIGS, NAMES, family_of, recorded
from ascend_check.page import COMPILED, FAILED, PASSED
from ascend_check.runs import PROMPTS, STEPS, logits
from mindbatch.ascend_simulation.process import simulate
from mindbatch.backends.loader import load_weights
from mindbatch.backends.mindformers.families import FAMILIES
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.kernels import mindspore_kernels
from mindbatch.kernels.ascend import step as ascend_step
from mindbatch.kernels.ascend.kernels import AscendKernels
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.memory import BFLOAT16, FLOAT16, FLOAT32
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import MODEL_TYPES, declaration, describe
from mindbatch.parallel.context import initialise

STAND_INS = (
    *("bloom", "llama", "olmo3", "qwen3_moe"),  # ALiBi, FlashAttentionScore, windows, experts
    *("chatglm_6b", "gpt_oss", "llama4_text", "mt5", "t5"),
)
SCRIPT = Path(__file__).parents[2] / "scripts/ascend_check.sh"


def test_every_model_type_is_checked() -> None:
    assert set(CONFIGS) == {name for name in MODEL_TYPES if not declaration(name).beyond_ascend}
    assert set(MINDFORMERS_CONFIGS) == set(FAMILIES)
    assert set(NAMES) == set(recorded())
    covered = [
        [position for span in spans for position in range(*span)] for spans in zip(*STEPS, strict=True)
    ]
    assert covered == [[*range(len(prompt))] for prompt in PROMPTS]
    kinds = [ascend_step.shape_of(spans, lambda tokens: 64, 64, flash=True).graph for spans in STEPS]
    assert kinds == [ascend_step.PROMPTS, ascend_step.CHUNKS, ascend_step.TOKENS, ascend_step.TOKENS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("gemma", "gpt2"),
        *(pytest.param(name, marks=pytest.mark.on_demand) for name in NAMES if family_of(name)),
    ],
)
def test_the_recorded_logits_are_those_of_a_cpu(name: str) -> None:
    initialise("CPU")
    found = logits(name, choose_kernels("auto", "CPU"))
    np.testing.assert_allclose(found, recorded()[name], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *STAND_INS,
        *(pytest.param(name, marks=pytest.mark.on_demand) for name in CONFIGS if name not in STAND_INS),
    ],
)
def test_the_recorded_logits_are_those_of_stand_ins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the reference kernels. Stand-ins compute what the documentation says, in float32 on a CPU: so
    layouts, masks, lengths and the order of arguments are proved, and the operators themselves are not."""
    initialise("CPU")
    ascend_operators.put_in(monkeypatch)
    for kernels in (ReferenceKernels(), AscendKernels(FLOAT32)):
        np.testing.assert_allclose(logits(name, kernels), recorded()[name], atol=1e-4)


@pytest.mark.slow
def test_numpy_is_what_the_documentation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell of the kernels over stand-ins of the operators, in float32, gives what NumPy does."""
    initialise("CPU")
    ascend_operators.put_in(monkeypatch)
    names = []
    for name, (found, expected) in operators.comparisons(AscendKernels(FLOAT32)):
        names.append(name)
        np.testing.assert_allclose(found, expected, atol=5e-6, err_msg=name)
    assert {"FlashAttentionScore", "PagedAttention, chunks", "PagedAttention"} <= {*names}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [(0.0, PASSED), (0.2, PASSED), (1.0, FAILED), (float("nan"), FAILED)],
)
def test_an_error_beyond_the_tolerance_is_a_failure(change: float, outcome: str) -> None:
    expected = np.full((2, 3), 10, np.float32)
    found = expected.copy()
    found[1, 2] += change
    result = worker._compared("model", "m", AscendKernels(BFLOAT16), found, expected, is_simulated=False)
    assert result["outcome"] == outcome


def test_a_wrong_shape_is_a_failure_in_simulation_too() -> None:
    arrays = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
    result = worker._compared("model", "m", AscendKernels(BFLOAT16), *arrays, is_simulated=True)
    assert result["outcome"] == FAILED


@pytest.mark.on_demand
@pytest.mark.usefixtures("ascend_simulation")
def test_the_kernels_compile_in_half_precision_and_not_in_float32() -> None:
    *results, last = simulate(simulated_kernels.every_operator, "float16", "bfloat16")
    assert {result["outcome"] for result in results} == {COMPILED}, results
    assert {result["dtype"] for result in results} == {"float16", "bfloat16"}
    assert "ApplyRotaryPosEmb" in last
    assert "Float32" in last


@pytest.mark.on_demand
@pytest.mark.usefixtures("ascend_simulation")
def test_the_script_runs_in_simulation(tmp_path: Path) -> None:
    names = ("gpt2", "mindformers_qwen3")
    command = ["bash", str(SCRIPT), "--simulate", "--dtypes", "bfloat16", "--models", *names]
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert f"compiled  model {name} bfloat16: shape (29, 96)" in done.stdout
    text = (tmp_path / "ascend_check.md").read_text()
    assert "0 failed, 1 skipped" in text
    assert re.search(
        r"two of them \| bfloat16 \| compiled \| (\d+) graphs of rank 0, \1 graphs of rank 1 ", text
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_rounded_to_the_type(dtype: str, tmp_path: Path) -> None:
    """To the nearest, ties to even: as MindSpore converts."""
    initialise("CPU")
    write_folder(tmp_path, descriptions()["llama"])
    kernels = choose_kernels("auto", "Ascend", dtype=dtype)
    with ModelFolder(str(tmp_path)) as model:
        arch = describe(model.config)
        half = load_weights(ModelSpec.of(arch), model, kernels)
        full = load_weights(ModelSpec.of(arch), model, ReferenceKernels())
    for name, parameter in full.parameters.items():
        found = half.parameters[name].asnumpy()
        assert found.dtype.name == dtype
        np.testing.assert_array_equal(found, parameter.astype(found.dtype))


def test_numbers_beyond_float16_are_refused(tmp_path: Path) -> None:
    initialise("CPU")
    description = descriptions()["llama"]
    shape, _ = description["tensors"]["model.norm.weight"]
    tensors = description["tensors"] | {"model.norm.weight": [shape, 1e6]}
    write_folder(tmp_path, description | {"tensors": tensors})
    with (
        ModelFolder(str(tmp_path)) as model,
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
    graph = AscendKernels(BFLOAT16).step_graph(nn.Cell(), operators.GEOMETRY)
    names = [*inspect.signature(graph.construct).parameters]
    assert names == [*ascend_step.AscendBatch._fields]
    assert {"batch_valid_length", "q_seq_lens"} <= {*names}


def test_a_fork_that_writes_cells_leaves_those_of_its_parent() -> None:
    parent, _ = (Path(mindspore_kernels._folder(process).name) for process in (-1, -2))
    assert parent.exists()
