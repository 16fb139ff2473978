"""What is compiled in the simulation's process for the tests of the Ascend kernels."""

from collections.abc import Iterator
from typing import Any

from mindbatch.ascend_check import operators, worker
from mindbatch.kernels.ascend.kernels import AscendKernels
from mindbatch.kernels.memory import DTYPES, FLOAT32


def every_operator() -> Iterator[Any]:
    """The results of both half types; then what float32 comes to."""
    for float_type in DTYPES["Ascend"]:
        yield from worker.results(worker.SIMULATED, float_type.name)
    try:
        names = [name for name, _ in operators.comparisons(AscendKernels(FLOAT32))]
        yield f"all compiled: {names}"
    except TypeError as error:
        yield str(error).splitlines()[0]
