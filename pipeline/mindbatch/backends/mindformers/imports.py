"""Imports MindFormers without hyper_parallel, which only training needs, and silences its output."""

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

from mindbatch.config.machine import HYPER_PARALLEL
from mindbatch.io.installation import is_installed


class _Absent(type):
    """The metaclass of names imported from hyper_parallel, which training code may call or extend."""

    def __call__(cls, *arguments: Any, **keywords: Any) -> _Absent:
        return cls

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{HYPER_PARALLEL} is not installed, but {cls.__name__} needs it")


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
        """Does nothing: `_Module` makes names when they are looked up."""


def stub_hyper_parallel() -> None:
    """Makes MindFormers 2.0 importable without hyper_parallel, which inference does not use."""
    if not is_installed(HYPER_PARALLEL):
        sys.meta_path.append(_Finder())


_LOGGER = logging.getLogger(__name__)


@contextmanager
def quietly() -> Iterator[None]:
    """Redirects standard output, where MindFormers prints tables, to the log."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        if printed.getvalue():
            _LOGGER.info(printed.getvalue())
