"""The declaration of a format of weights: names of files, reader, writer, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # declarations are read where no file is opened, too
    from mindbatch.checkpoint.formats.stored import FileLayout, StoredFile


@dataclass(frozen=True)
class WeightFormat:
    """Everything that differs between formats of files of tensors; each is declared in a file of its own.

    name: value of `StoredFile.kind`, and of target.format of `mindbatch reshard` where it is written.
    title: the words for it in messages.
    suffixes: suffixes of its files, of which the first one is written.
    model_files: patterns of the file that holds a whole model's weights, or is the index of several files;
        the first pattern that exactly one file of a folder matches is taken.
    not_models: patterns of files with one of the suffixes that are never a model's.
    indexes: patterns of the names of the JSON files that map tensors to files of this format.
    is_pickle: True for formats whose suffixes are those of any Python object. Their files are taken under the
        names above or when they are given themselves; the hub's are fetched only where the user names them.
    open: opens a file and checks everything but the contents of its tensors; None if it is not read.
    refusal: what a user who has such a file can do, where it is not read; with {needed} for what is read.
    lay_out: lays out a file of tensors (name, dtype, shape) to be written; None if the format is not written.
    rank_file: name of the file that is written for a rank, with {rank} for its number.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    model_files: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    is_pickle: bool = False
    open: Callable[[Path], StoredFile] | None = None
    refusal: str | None = None
    lay_out: Callable[[Iterable[tuple[str, str, tuple[int, ...]]]], FileLayout] | None = None
    rank_file: str = ""

    def matches(self, file: str) -> bool:
        return file.endswith(self.suffixes)

    @property
    def adapter_file(self) -> str:
        """The name of the file with an adapter's tensors, as PEFT writes it."""
        return f"adapter_model{self.suffixes[0]}"


def lazily(module: str, function: str) -> Callable[..., Any]:
    """A function of a module beside this one, which is imported by the first call: most folders need one."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"{__package__}.{module}"), function)(*arguments)

    return call
