"""PyTorch's files of a state_dict: pickles, which are read as data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.checkpoint.formats.weight_format import WeightFormat

if TYPE_CHECKING:
    from mindbatch.checkpoint.formats.stored import StoredFile

_INDEX = "pytorch_model.bin.index.json"


def _open(path: Path) -> StoredFile:
    from mindbatch.checkpoint.formats.pytorch_file import open_pytorch  # which most folders do not need

    return open_pytorch(path)


PYTORCH = WeightFormat(
    name="pytorch",
    title="PyTorch",
    suffixes=(".bin", ".pt", ".pth"),
    model_files=("pytorch_model.bin", _INDEX, "*.pth"),
    not_models=("consolidated.*", "rng_state*"),  # of Meta's own format, and of trainings
    indexes=(_INDEX,),
    is_pickle=True,
    open=_open,
)
