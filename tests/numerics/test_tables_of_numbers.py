"""Tables that NumPy makes have the same bits whatever instructions it takes: a child has only the oldest."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import SCALINGS, plain_frequencies, read_rotary
from mindbatch.kernels.shapes import alibi_slopes
from mindbatch.layers.attention import distance_buckets

try:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
except ImportError:  # NumPy 1
    from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__

THETAS = (1e4, 5e5, 1e6, 8e6, 26753.2)
SETTINGS = {
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
NEEDED = {"default": 0, "linear": 1, "yarn": 2, "llama3": 4}


def digest_of_tables() -> str:
    digest = hashlib.sha256()
    for theta in THETAS:
        for width in (8, 64, 80, 96, 128, 192, 256):
            digest.update(plain_frequencies(theta, width).tobytes())
            for kind in SCALINGS:
                scaling = {"rope_type": kind, **dict([*SETTINGS.items()][: NEEDED[kind]])}
                reader = ConfigReader({"rope_theta": theta, "rope_scaling": scaling})
                rotary = read_rotary(reader, width, 32768)
                assert not reader.errors
                digest.update(np.array(rotary.inverse_frequencies, np.float32).tobytes())
    for heads in (2, 12, 32, 71):
        digest.update(np.array(alibi_slopes(heads), np.float32).tobytes())
    for max_distance in (20, 128, 1000):
        digest.update(distance_buckets(32, max_distance, causal=False).tobytes())
    return digest.hexdigest()


def test_tables_do_not_depend_on_the_processor() -> None:
    features = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    if not features:
        pytest.skip("this processor has nothing beyond what NumPy needs")
    child = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as tables; print(tables.digest_of_tables())"],
        env=os.environ
        | {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.strip() == digest_of_tables()
