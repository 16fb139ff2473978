"""Matrices that tools have quantised, and what they make of them: see make_quantised_fixtures.py."""

from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.folder_files import read_config
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.config_json.quantisation import open_whole

WRITTEN = Path(__file__).with_name("written")
IN_OTHER_ORDER = {"bitsandbytes_int8": 1.3e-7}
"""By a form whose tool multiplies by the scale and then divides, the relative difference that this makes."""


@pytest.mark.parametrize("form", sorted(folder.name for folder in WRITTEN.iterdir()))
def test_a_matrix_is_what_its_tool_makes_of_it(form: str) -> None:
    with open_tensor_file(WRITTEN / form / "floats.safetensors") as file:
        info = file.tensors["floats"]
        stored = bytearray(info.nbytes)
        file.read_into("floats", 0, memoryview(stored))
    with open_whole(WRITTEN / form, read_config(WRITTEN / form)) as folder:
        floats = folder.floats("m.weight")
    if info.dtype == "F32":
        expected = np.frombuffer(stored, np.float32).reshape(info.shape)
        np.testing.assert_allclose(floats, expected, rtol=IN_OTHER_ORDER.get(form, 0))
    else:  # the tool rounds at the end
        rounded, _ = converted(floats, "F32", info.dtype)
        np.testing.assert_array_equal(rounded.view(np.uint16).tobytes(), bytes(stored))
