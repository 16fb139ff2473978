"""Keeps what MindFormers prints while a network is made from the user's screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from os import devnull


@contextmanager
def quietly(verbose: bool) -> Iterator[None]:
    """Drops standard output, where MindFormers prints tables; what it logs is filtered beforehand."""
    if verbose:
        yield
        return
    with open(devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield
