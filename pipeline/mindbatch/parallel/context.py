"""Setting MindSpore up for one process: graph mode, device, threads."""

from __future__ import annotations

import mindspore

from mindbatch.errors import ConfigError
from mindbatch.kernels.library import find_library


def initialise(device_target: str, num_threads: int | None) -> None:
    """Chooses the device and the number of threads; call before any tensor is made.

    num_threads: for the native kernels and MindSpore's own operators; None is one for each core.

    Raises:
        ConfigError: this machine or this build of MindSpore does not have the device.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        mindspore.set_device(device_target)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"runtime.device_target={device_target}: not available here: {reason}") from error
    if num_threads is None:
        return
    mindspore.runtime.dispatch_threads_num(num_threads)
    library = find_library()
    if library is not None:
        library.set_num_threads(num_threads)
