"""Folders with quantised matrices: what a rank loads of them, and what they compute."""

import re
from pathlib import Path

import numpy as np
import pytest
from adapter_models import GEOMETRY, logits
from model_folders import weights_of
from type_cases import description_of

from mindbatch.backends import native
from mindbatch.backends.loader import load_weights
from mindbatch.config.model_schema import ModelConfig
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.native_library import find_library
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import WHOLE, RankPart, TensorSlice
from quantised_folders import METHODS, Sample, sample
from small_configs import LLAMA

ROWS = [([1, 5, 9, 30, 2], 0), ([7, 7, 8], 0)]


@pytest.mark.parametrize("shard", [WHOLE, TensorSlice(1, 2)], ids=["whole", "rank"])
@pytest.mark.parametrize("method", METHODS)
def test_a_rank_loads_the_numbers_that_the_integers_stand_for(
    tmp_path: Path, method: str, shard: TensorSlice
) -> None:
    made, kernels = sample(method, LLAMA), choose_kernels("auto", "CPU")
    found = []
    for path in (made.write(tmp_path / "quantised"), made.write_floats(tmp_path / "floats")):
        with open_model(ModelConfig(checkpoint_name_or_path=str(path))).folder as folder:
            found.append(
                load_weights(ModelSpec.of(describe(made.config), RankPart(shard)), folder, kernels).parameters
            )
    for name, parameter in found[1].items():
        np.testing.assert_array_equal(np.asarray(found[0][name]), np.asarray(parameter))


@pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")
@pytest.mark.parametrize("shard", [WHOLE, TensorSlice(1, 2)], ids=["whole", "rank"])
def test_int8_keeps_the_integers_and_scales_of_a_folder(tmp_path: Path, shard: TensorSlice) -> None:
    """Rounding the floats again would change them: many rows have -128, which is never given out."""
    made = sample("int8", LLAMA)
    kernels = choose_kernels("native", "CPU", quantization="int8")
    with open_model(ModelConfig(checkpoint_name_or_path=str(made.write(tmp_path)))).folder as folder:
        packed = np.asarray(
            load_weights(ModelSpec.of(describe(made.config), RankPart(shard)), folder, kernels).parameters[
                "layers.0.mlp.up.weight"
            ]
        )
    parts = [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up")]
    rows = slice(*shard.bounds(48))
    numbers = np.concatenate([made.tensors[f"{part}.weight"][rows] for part in parts])
    scales = np.concatenate([made.tensors[f"{part}.weight_scale"][rows] for part in parts])
    for output, (row, scale) in enumerate(zip(numbers, scales, strict=True)):
        panel, column = packed[output // 32].tobytes(), output % 32
        words = np.frombuffer(panel[:-256], np.int8).reshape(-1, 32, 4)
        np.testing.assert_array_equal(words[:, column].reshape(-1)[: len(row)], row)
        assert not words[:, column].reshape(-1)[len(row) :].any()
        tail = np.frombuffer(panel[-256:-128], np.float32), np.frombuffer(panel[-128:], np.int32)
        assert tail[0][column] == np.float32(scale[0])
        assert tail[1][column] == 128 * row.astype(np.int32).sum()


def test_a_quantised_model_gives_the_logits_of_its_floats(tmp_path: Path) -> None:
    initialise("CPU")
    made, found = sample("gptq_order", LLAMA), []
    for path in (made.write(tmp_path / "quantised"), made.write_floats(tmp_path / "floats")):
        folder, spec = open_model(ModelConfig(checkpoint_name_or_path=str(path)))
        with folder:
            loaded = native.load(spec, folder, choose_kernels("auto", "CPU"), GEOMETRY)
        found.append(np.concatenate(logits(loaded, ROWS)))
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "case", ["qwen3", "qwen3_moe", "qwen3_5_text", "deepseek_v3", "minimax_m2", "glm4_moe"]
)
def test_types_that_are_published_in_fp8_have_the_weights_of_their_floats(tmp_path: Path, case: str) -> None:
    """Matrices of linear layers and of single experts; routers, norms and tables stay floats."""
    described, chance = description_of(case), np.random.default_rng(5)
    floats = weights_of(described)
    made = Sample(described["config"] | {"quantization_config": METHODS["fp8"].settings}, {}, floats)
    for name, array in floats.items():
        if not re.search(r"(_proj|_proj_with_mqa|\.w[123])\.weight$", name):
            made.tensors[name] = array
            continue
        found = METHODS["fp8"].draw(chance, *array.shape)
        floats[name] = found.floats
        module = name.removesuffix(".weight")
        made.tensors.update({f"{module}.{end}": each for end, each in found.tensors.items()})
    assert any(name.endswith("weight_scale_inv") for name in made.tensors)
    parameters = []
    for path in (made.write(tmp_path / "quantised"), made.write_floats(tmp_path / "floats")):
        folder, spec = open_model(ModelConfig(checkpoint_name_or_path=str(path)))
        with folder:
            parameters.append(load_weights(spec, folder, choose_kernels("auto", "CPU")).parameters)
    for name, parameter in parameters[1].items():
        np.testing.assert_array_equal(np.asarray(parameters[0][name]), np.asarray(parameter))
