"""Divides Chinese texts into words with jieba."""

import logging
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mindbatch.io.storage import TemporaryFolder

_LOADING = threading.Lock()


def words_of(text: str) -> Iterable[str]:
    """Divides a text into words, of which white space and punctuation marks are some."""
    with _LOADING:
        divider = _divider()
    words: Iterable[str] = divider.cut(text)
    return words


@lru_cache(maxsize=1)
def _divider() -> Any:
    """Loads jieba with its dictionary, which takes most of a second.

    jieba caches the dictionary in the folder for temporary files and reads any file of that name there, so
    it gets a private folder.
    """
    import jieba

    jieba.setLogLevel(logging.WARNING)  # it reports on stderr that it loads its dictionary
    divider = jieba.Tokenizer()
    with TemporaryFolder() as folder:
        divider.tmp_dir = str(folder)
        divider.initialize()
    return divider
