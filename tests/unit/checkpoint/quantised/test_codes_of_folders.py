"""Matrices of quantised folders as the codes that they are, with their scales and offsets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.backends.loader import load_weights
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.quantised.folder import QuantisedFolder
from mindbatch.checkpoint.quantised.small_floats import E4M3
from mindbatch.config_json.quantisation import open_whole
from mindbatch.kernels.codes import INT8_BY_OUTPUT, CodeType, packed_type
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.operations.dense import embedding
from mindbatch.kernels.recording import Recording
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.topology import WHOLE, RankPart, TensorSlice
from quantised_folders import METHODS, sample
from quantised_stacks import mxfp4
from small_configs import LLAMA

MATRIX = "model.layers.0.mlp.down_proj"  # [32, 48]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("int8", CodeType("int8")),
        ("packed", CodeType("int4", 16)),
        ("packed_zeros", CodeType("int4", 16, has_offsets=True)),
        ("packed_order", None),
        ("awq", CodeType("int4", 16, has_offsets=True)),
        ("gptq8", CodeType("int8", 16, has_offsets=True)),
        ("nvfp4", CodeType("float4", 16)),
        ("ascend_static", CodeType("int8")),
        ("ascend_int4", CodeType("int4", 16)),
        ("nf4", None),
        ("fp8", CodeType("float8", 32)),
    ],
)
def test_the_whole_numbers_of_a_matrix_are_known(tmp_path: Path, method: str, kind: CodeType | None) -> None:
    made = sample(method, LLAMA)
    with open_whole(made.write(tmp_path), made.config) as folder:
        assert isinstance(folder, QuantisedFolder)
        assert folder.code_type("model.norm.weight") is None
        assert folder.code_type(f"{MATRIX}.weight") == kind


def test_integers_with_a_scale_for_each_output_are_given_as_they_are(tmp_path: Path) -> None:
    made = sample("int8", LLAMA)
    with open_whole(made.write(tmp_path), made.config) as folder:
        assert isinstance(folder, QuantisedFolder)
        codes = folder.codes(f"{MATRIX}.weight", slice(2, 9), slice(1, 40), INT8_BY_OUTPUT)
        np.testing.assert_array_equal(codes.numbers, made.tensors[f"{MATRIX}.weight"][2:9, 1:40])
        np.testing.assert_array_equal(codes.scales, made.tensors[f"{MATRIX}.weight_scale"][2:9])
        assert codes.offsets is None


@pytest.mark.parametrize("method", METHODS)
def test_codes_times_scales_are_the_floats(tmp_path: Path, method: str) -> None:
    """Of a slice, in the folder's groups, in smaller ones, and as numbers of another type, with offsets."""
    made, rows, columns = sample(method, LLAMA), slice(3, 30), slice(16, 48)
    with open_whole(made.write(tmp_path), made.config) as folder:
        assert isinstance(folder, QuantisedFolder)
        if (kind := folder.code_type(f"{MATRIX}.weight")) is None:
            return
        others = [CodeType("int8", 16, has_offsets=True)]
        table = E4M3 if kind.numbers == "float8" else np.arange(256, dtype=np.uint8).view(np.int8)
        for packed in filter(None, (packed_type([kind], 16), packed_type([kind, *others], 16))):
            codes = folder.codes(f"{MATRIX}.weight", rows, columns, packed)
            size = packed.group or 32
            floats = table[codes.numbers.view(np.uint8)].reshape(27, -1, size) * codes.scales[:, :, None]
            if packed.has_offsets:
                assert codes.offsets is not None
                floats = floats + codes.offsets[:, :, None]
            expected = made.floats[f"{MATRIX}.weight"][rows, columns]
            # Scales of float32 make offsets that are rounded once more.
            exact = 0 if packed == kind and not kind.has_offsets else 2e-7
            np.testing.assert_allclose(
                floats.reshape(27, -1), expected, rtol=0, atol=exact * abs(expected).max()
            )


@pytest.mark.parametrize("rank", [WHOLE, TensorSlice(1, 2)])
def test_stacks_of_experts_stay_as_they_are_stored(tmp_path: Path, rank: TensorSlice) -> None:
    """Looked up as rows of a table they are the numbers of the floats."""
    if (library := find_library()) is None:
        pytest.skip("the C++ kernels were not built")
    made = mxfp4(256, 512)
    made.write_floats(tmp_path / "floats")
    spec = ModelSpec.of(describe(made.config), RankPart(rank))
    with (
        open_whole(made.write(tmp_path / "mxfp4"), made.config) as codes,
        ModelFolder(tmp_path / "floats") as floats,
    ):
        kernels = NativeKernels(library, keeps_codes=True)
        kept, widened = (load_weights(spec, folder, kernels).parameters for folder in (codes, floats))
    for which, width in (("up", 256), ("down", 512 // rank.size)):
        name = next(own for own in kept if own.startswith("layers.1.") and own.endswith(f"{which}.weight"))
        ids = np.arange(len(kept[name]) * 32, dtype=np.int32)
        rows = [rows_of(kernels, parameters[name], ids, width) for parameters in (kept, widened)]
        assert kept[name].kind == "float4"
        np.testing.assert_array_equal(*rows)


def rows_of(kernels: NativeKernels, weight: Any, ids: np.ndarray[Any, Any], width: int) -> Any:
    recording = Recording()
    recording.outputs = [embedding(recording.input((), np.int32), weight, width=width)]
    return kernels.program(kernels.lowered(recording)).run([ids])[0]
