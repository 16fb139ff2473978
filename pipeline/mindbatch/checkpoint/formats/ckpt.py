"""MindSpore's .ckpt files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.checkpoint.formats.weight_format import TensorEntry, WeightFormat

if TYPE_CHECKING:
    from mindbatch.checkpoint.formats.stored import FileLayout, StoredFile


def _open(path: Path) -> StoredFile:
    from mindbatch.checkpoint.formats.ckpt_file import open_ckpt  # which most folders do not need

    return open_ckpt(path)


def _lay_out(tensors: Iterable[TensorEntry]) -> FileLayout:
    from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout

    return ckpt_layout(tensors)


CKPT = WeightFormat(
    name="ckpt",
    title="MindSpore",
    suffixes=(".ckpt",),
    open=_open,
    lay_out=_lay_out,
    rank_file="checkpoint_{rank}.ckpt",
)
