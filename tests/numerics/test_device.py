"""A program may have computed something with MindSpore before it loads a model."""

import subprocess
import sys

import pytest

PROGRAM = """
import numpy, mindspore
from mindbatch.io.errors import ConfigError
from mindbatch.parallel.context import initialise

assert (mindspore.Tensor(numpy.ones(2, numpy.float32)) + 1).asnumpy().sum() == 4
initialise("CPU")
try:
    initialise("Ascend")
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_device_in_use_is_taken_and_another_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("runtime.device_target=Ascend: not available here: ")
