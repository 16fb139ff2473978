"""A regular expression of Python's `re` as the tree that Python's own parser makes of it."""

import re
import sys
import warnings
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

__all__ = ["BEGINNINGS", "ENDS", "MAX_NESTING", "TOO_DEEP", "constants", "regex_tree"]

MAX_NESTING = 60
"""Groups in groups; repeats and alternatives count too. Whoever walks a tree counts them."""
TOO_DEEP = f"is nested too deeply; at most {MAX_NESTING} levels are allowed"
BEGINNINGS = (constants.AT_BEGINNING, constants.AT_BEGINNING_STRING)
ENDS = (constants.AT_END, constants.AT_END_STRING)


def regex_tree(pattern: str, max_characters: int) -> Any:
    """Returns the nodes (operation, value) of a pattern; `constants` are the operations, `state.flags` its
    flags. Raises ValueError: the reason, as words that follow the name of the pattern."""
    if len(pattern) > max_characters:
        raise ValueError(f"has {len(pattern)} characters; at most {max_characters} are allowed")
    try:
        with warnings.catch_warnings():  # of sets that a later Python may read otherwise
            warnings.simplefilter("ignore")
            return parser.parse(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression ({error})") from error
    except OverflowError as error:
        raise ValueError("repeats too often") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
