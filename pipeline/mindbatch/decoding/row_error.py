"""What an exception means for the one row in which it was raised."""

import logging

from mindbatch.errors import PromptError
from mindbatch.screen_text import printable

_LONGEST = 500
_log = logging.getLogger(__name__)


def row_error(error: Exception, key: str) -> PromptError:
    """The error that ends row `key` and no other: `error` itself if it is meant for users.

    Any other was not foreseen: it is named in one line with its type, and its traceback is logged, which
    --verbose shows.
    """
    if isinstance(error, PromptError):
        return error
    _log.info("row %s", printable(key), exc_info=error)
    text = " ".join(str(error).split())
    return PromptError(printable(f"unforeseen {type(error).__name__}{': ' * bool(text)}{text}", _LONGEST))
