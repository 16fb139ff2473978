"""What numerics tests share: a machine on which Ascend can be simulated, and the C++ kernels."""

from collections.abc import Iterator

import pytest

from mindbatch.ascend_simulation.stubs import find_plugin, needed_tool
from mindbatch.io.errors import BackendError
from mindbatch.kernels.native_library import NativeLibrary, find_library

LIBRARY = find_library()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Lets one machine show what others would compute."""
    parser.addoption("--instruction-set", help="of the C++ kernels; otherwise the best one of this machine")


def pytest_configure(config: pytest.Config) -> None:
    """Uses the instruction set that was asked for: bounds must hold with each."""
    if (name := config.getoption("--instruction-set")) is not None and LIBRARY is not None:
        LIBRARY.set_variant(name)


@pytest.fixture(scope="session")
def ascend_simulation() -> None:
    """Skips where Ascend cannot be simulated: without MindSpore's plugin, a C compiler or nm."""
    try:
        find_plugin()
        needed_tool("gcc", "cc")
        needed_tool("nm")
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture
def library() -> Iterator[NativeLibrary]:
    """The C++ kernels; tests may choose an instruction set."""
    if LIBRARY is None:
        pytest.skip("the C++ kernels were not built")
    before = LIBRARY.variant
    yield LIBRARY
    LIBRARY.set_variant(before)


@pytest.fixture(params=[] if LIBRARY is None else LIBRARY.variants)
def variant(request: pytest.FixtureRequest, library: NativeLibrary) -> str:
    """Each instruction set of this machine, in use."""
    library.set_variant(request.param)
    return str(request.param)
