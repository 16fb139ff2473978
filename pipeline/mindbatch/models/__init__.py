"""A module for each model_type of Hugging Face configurations, which declares it as its `MODEL`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader

if TYPE_CHECKING:  # NumPy, which a mistake of the command line need not load
    from mindbatch.layers.decoder import Decoder


@dataclass(frozen=True)
class ModelType:
    """Models of one `model_type`.

    describe: from config.json; errors are left in the reader.
    tree: its layers, which own the parameters.
    prefix: of the checkpoint's names; some checkpoints leave it out.
    unused_tensors: patterns of names that a checkpoint may hold though nothing reads them.
    copies: by the name of a tensor that a checkpoint may hold besides, the tensor that it must be equal to.
    head_as_stored: whether the head is the token embedding shows in the tensors, whatever config.json says.
    beyond_ascend: what the models have that only a CPU computes, in words; empty where all is.
    """

    describe: Callable[[ConfigReader], Architecture]
    tree: Callable[[Architecture], Decoder]
    prefix: str
    unused_tensors: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    head_as_stored: bool = False
    beyond_ascend: str = ""
