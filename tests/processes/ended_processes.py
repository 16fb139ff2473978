"""Waiting for processes that nobody here has started."""

import os
import select


def is_gone(process: int) -> bool:
    """Whether a process ends; one that is being ended is waited for."""
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([end], [], [], 60.0)[0])
    finally:
        os.close(end)
