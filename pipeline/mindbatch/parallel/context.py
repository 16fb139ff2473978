"""Setting MindSpore up for one process: graph mode, device, threads."""

from __future__ import annotations

import mindspore

from mindbatch.kernels.library import find_library


def initialise(device_target: str, num_threads: int | None) -> None:
    """Chooses the device and the number of threads; call before any tensor is made.

    num_threads: for the native kernels and MindSpore's own operators; None leaves one a core.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device(device_target)
    if num_threads is None:
        return
    mindspore.set_cpu_affinity(False)
    library = find_library()
    if library is not None:
        library.set_num_threads(num_threads)
