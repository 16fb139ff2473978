"""MindFormers imported without hyper_parallel, which only training needs, and networks made in silence."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import StringIO
from types import ModuleType
from typing import Any, NoReturn

from mindbatch.config.machine import HYPER_PARALLEL, is_installed


class _Absent(type):
    """The class of whatever is imported from it: what is defined for training may name, call or extend it."""

    def __call__(cls, *arguments: Any, **keywords: Any) -> _Absent:
        return cls

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{HYPER_PARALLEL} is not installed, and {cls.__name__} is a part of it")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        is_part = name.partition(".")[0] == HYPER_PARALLEL
        return ModuleSpec(name, self, is_package=True) if is_part else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names are made when they are asked for."""


def stand_in_for_hyper_parallel() -> None:
    """Lets MindFormers 2.0 be imported where hyper_parallel is absent; inference uses nothing of it."""
    if not is_installed(HYPER_PARALLEL):
        sys.meta_path.append(_Finder())


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
