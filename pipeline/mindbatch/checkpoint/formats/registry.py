"""The formats of weights, and what folders, adapters, `reshard` and the hub ask about all of them."""

from pathlib import Path

from mindbatch.checkpoint.formats.ckpt import CKPT
from mindbatch.checkpoint.formats.gguf import GGUF
from mindbatch.checkpoint.formats.pytorch import PYTORCH
from mindbatch.checkpoint.formats.safetensors import SAFETENSORS
from mindbatch.checkpoint.formats.unread import UNREAD
from mindbatch.checkpoint.formats.weight_format import WeightFormat

FORMATS: tuple[WeightFormat, ...] = (SAFETENSORS, CKPT, PYTORCH, GGUF, *UNREAD)
"""In the order in which a folder that has several is read."""

READ = tuple(known for known in FORMATS if known.open)
WRITTEN = {known.name: known for known in FORMATS if known.lay_out}
SEARCHED_SUFFIXES = tuple(suffix for known in READ if not known.is_pickle for suffix in known.suffixes)
"""Suffixes of files that hold a checkpoint or an adapter, whatever their names are."""


def format_of(path: Path | str) -> WeightFormat | None:
    """The format with the suffix of a file's name; None if none has it."""
    suffix = Path(path).suffix
    return next((known for known in FORMATS if suffix in known.suffixes), None)


def needed_files() -> str:
    """Names the files of tensors that are read, for messages."""
    plain, pickles = ([known for known in READ if known.is_pickle is kind] for kind in (False, True))
    suffixes = ", ".join(suffix for known in plain for suffix in known.suffixes)
    owners = "".join(f" or {known.title}'s {', '.join(known.suffixes)}" for known in pickles)
    return f"must be a file of tensors, {suffixes}{owners}"


def needed_model_files() -> str:
    """Names the files of a whole model's weights that are read, for messages."""
    first, *others = (known for known in READ if known.model_files)
    single, index, *_ = first.model_files
    likewise = "".join(f", or {known.title}'s {known.model_files[0]} likewise" for known in others)
    return f"needed is {single}, or {index} with its shards{likewise}"
