"""What is compiled in the simulation's process for the tests of the Ascend kernels."""

from collections.abc import Iterator
from typing import Any

from ascend_check import operators, worker
from mindbatch.kernels.ascend.kernels import AscendKernels
from mindbatch.kernels.memory import FLOAT32


def every_operator(*dtypes: str) -> Iterator[Any]:
    """The results of the half types; then what float32 comes to."""
    for name in dtypes:
        yield from worker.results(worker.SIMULATED, name)
    try:
        names = [name for name, _ in operators.comparisons(AscendKernels(FLOAT32))]
        yield f"all compiled: {names}"
    except TypeError as error:
        yield str(error).splitlines()[0]
