"""Keeps what MindFormers prints while a network is made from the user's screen."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

_LOGGER = logging.getLogger(__name__)


@contextmanager
def quietly() -> Iterator[None]:
    """Turns standard output, where MindFormers prints tables, into a record of the log, shown if verbose."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        if printed.getvalue():
            _LOGGER.info(printed.getvalue())
