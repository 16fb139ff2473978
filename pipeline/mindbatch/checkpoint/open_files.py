"""Raises the limit of open files: a checkpoint of a thousand ranks has as many."""

import resource

_OTHERS = 256  # that are open already: pipes, logs, libraries


def allow_open_files(count: int) -> None:
    """Raises the limit of this process, and of those it will start, where it is too low for `count` more.

    It stays as it is where the system allows no more; opening a file says so then.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
