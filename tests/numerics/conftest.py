"""What numerics tests share: a machine on which Ascend can be simulated."""

import pytest

from mindbatch.ascend_simulation.stubs import find_plugin, needed_tool
from mindbatch.io.errors import BackendError


@pytest.fixture(scope="session")
def ascend_simulation() -> None:
    """Skips where Ascend cannot be simulated: without MindSpore's plugin, a C compiler or nm."""
    try:
        find_plugin()
        needed_tool("gcc", "cc")
        needed_tool("nm")
    except BackendError as error:
        pytest.skip(str(error))
