"""Merging LoRA adapters: the arithmetic, any box of it, and one rounding."""

from dataclasses import replace

import numpy as np
import pytest
from adapter_folders import CONFIG, MODULES, SHAPES, matrices, write_adapter
from hypothesis import given, settings
from hypothesis import strategies as st

from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.merge import TILE, LoraMerge, tiles
from mindbatch.errors import CheckpointError

NAME = f"{MODULES[0]}.weight"
KEY = f"base_model.model.{MODULES[0]}"
LARGE = {"model.big.weight": (TILE + 170, TILE * 2 + 30)}


def pair():
    found = matrices()
    return found[f"{KEY}.lora_B.weight"], found[f"{KEY}.lora_A.weight"]


def scaled(adapter, scaling):
    return replace(adapter, settings=replace(adapter.settings, given=scaling))


def full(shape):
    return tuple((0, size) for size in shape)


def test_the_whole_product(tmp_path):
    merge = LoraMerge(open_adapter(write_adapter(tmp_path)), SHAPES)
    b, a = pair()
    np.testing.assert_allclose(merge.delta(NAME, full((6, 4))), 1.5 * b @ a, rtol=1e-6)
    assert set(merge.names) == {f"{module}.weight" for module in MODULES}
    with pytest.raises(KeyError):
        merge.delta("model.layers.0.self_attn.k_proj.weight", full((6, 4)))


def test_a_given_scaling_is_taken(tmp_path):
    merge = LoraMerge(scaled(open_adapter(write_adapter(tmp_path)), 0.25), SHAPES)
    b, a = pair()
    np.testing.assert_allclose(merge.delta(NAME, full((6, 4))), 0.25 * b @ a, rtol=1e-6)


def test_weights_stored_inputs_first(tmp_path):
    """As GPT-2's Conv1D."""
    turned = {name: shape[::-1] for name, shape in SHAPES.items()}
    merge = LoraMerge(open_adapter(write_adapter(tmp_path, fan_in_fan_out=True)), turned)
    b, a = pair()
    np.testing.assert_allclose(merge.delta(NAME, full((4, 6))), (1.5 * b @ a).T, rtol=1e-6)
    np.testing.assert_array_equal(
        merge.delta(NAME, ((1, 3), (2, 6))), merge.delta(NAME, full((4, 6)))[1:3, 2:6]
    )


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "fan_in_fan_out"])
def large(request, tmp_path_factory):
    """A product of several tiles, with ends that fill none."""
    (outputs, inputs), random = LARGE["model.big.weight"], np.random.default_rng(5)
    tensors = {
        "base_model.model.model.big.lora_A.weight": random.normal(size=(7, inputs)).astype(np.float32),
        "base_model.model.model.big.lora_B.weight": random.normal(size=(outputs, 7)).astype(np.float32),
    }
    config = CONFIG | {"r": 7, "target_modules": ["big"], "fan_in_fan_out": request.param}
    folder = write_adapter(tmp_path_factory.mktemp("large"), tensors, config)
    shape = (inputs, outputs) if request.param else (outputs, inputs)
    merge = LoraMerge(open_adapter(folder), {"model.big.weight": shape})
    return merge, shape, merge.delta("model.big.weight", full(shape))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_box_has_the_bits_of_the_whole(large, data):
    merge, shape, whole = large
    box = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        box.append((start, data.draw(st.integers(start + 1, size))))
    part = whole[slice(*box[0]), slice(*box[1])]
    assert merge.delta("model.big.weight", tuple(box)).tobytes() == part.tobytes()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_sum_is_rounded_once(tmp_path, dtype):
    merge = LoraMerge(open_adapter(write_adapter(tmp_path)), SHAPES)
    stored, _ = converted(np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32), "F32", dtype)
    wide, _ = converted(stored, dtype, "F32")
    expected, _ = converted(wide + merge.delta(NAME, full((6, 4))), "F32", dtype)
    box = ((2, 5), (1, 4))
    found = merge.merged(NAME, box, stored[2:5, 1:4], dtype, dtype)
    assert found.dtype == stored.dtype
    np.testing.assert_array_equal(found, expected[2:5, 1:4])
    assert (found != stored[2:5, 1:4]).any()


def test_tiles_begin_where_those_of_the_whole_begin():
    """Not every BLAS rounds alike at other places of a product."""
    assert list(tiles(TILE + 7, TILE * 2 + 1)) == [(TILE, TILE * 2), (TILE * 2, TILE * 3)]
    assert list(tiles(TILE, TILE + 1)) == [(TILE, TILE * 2)]
    assert list(tiles(0, TILE)) == [(0, TILE)]


def test_values_that_become_too_large_are_refused(tmp_path):
    merge = LoraMerge(scaled(open_adapter(write_adapter(tmp_path)), 1e6), SHAPES)
    with pytest.raises(
        CheckpointError, match=r"q_proj.weight': with the adapter \d+ values are too large for F16"
    ):
        merge.merged(NAME, full((6, 4)), np.zeros((6, 4), np.float16), "F16", "F16")
