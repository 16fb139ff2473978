"""Reading and hashing many tensors at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> dict[Item, Result]:
    """The result of `work` for each item, in threads, as many as there are processors.

    Reading and hashing leave the interpreter to the other threads.
    """
    item_list = list(items)
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        return dict(zip(item_list, pool.map(work, item_list), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
