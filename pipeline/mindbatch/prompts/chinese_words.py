"""Words of texts with Chinese in them, as jieba divides them."""

import logging
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mindbatch.io.storage import TemporaryFolder

_LOADING = threading.Lock()


def words_of(text: str) -> Iterable[str]:
    """The words of a text, in order and without gaps: white space and punctuation marks are words, too."""
    with _LOADING:
        divider = _divider()
    words: Iterable[str] = divider.cut(text)
    return words


@lru_cache(maxsize=1)
def _divider() -> Any:
    """jieba with its dictionary, which takes most of a second to read.

    It keeps a copy in the folder for temporary files, and takes whatever has its name there: ours is in a
    folder that nobody else writes to.
    """
    import jieba

    jieba.setLogLevel(logging.WARNING)  # it tells on stderr that it loads its dictionary
    divider = jieba.Tokenizer()
    with TemporaryFolder() as folder:
        divider.tmp_dir = str(folder)
        divider.initialize()
    return divider
