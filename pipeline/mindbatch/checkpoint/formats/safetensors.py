"""safetensors, the format of Hugging Face's folders and of MindFormers' Checkpoint 2.0."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.checkpoint.formats.weight_format import TensorEntry, WeightFormat

if TYPE_CHECKING:
    from mindbatch.checkpoint.formats.stored import FileLayout, StoredFile

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAP_NAME = "param_name_map.json"
"""The index of MindSpore's unified_safetensors."""


def _open(path: Path) -> StoredFile:
    from mindbatch.checkpoint.formats.safetensors_file import open_safetensors

    return open_safetensors(path)


def _lay_out(tensors: Iterable[TensorEntry]) -> FileLayout:
    from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout

    return safetensors_layout(tensors)


SAFETENSORS = WeightFormat(
    name="safetensors",
    title="safetensors",
    suffixes=(".safetensors",),
    model_files=(SINGLE_NAME, INDEX_NAME),
    indexes=(INDEX_NAME, MAP_NAME),
    open=_open,
    lay_out=_lay_out,
    rank_file=SINGLE_NAME,
)
