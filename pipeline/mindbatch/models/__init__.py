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
    """Declares one `model_type`: how its configuration is read and its layers are made."""

    describe: Callable[[ConfigReader], Architecture]
    """Reads config.json; errors are left in the reader."""
    tree: Callable[[Architecture], Decoder]
    """Makes the layers, which own the parameters."""
    prefix: str
    """Prefix of the checkpoint's names; some checkpoints leave it out."""
    unused_tensors: tuple[str, ...] = ()
    """Patterns of names that a checkpoint may hold though nothing reads them."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """By the name of a tensor that a checkpoint may hold besides, the tensor that it must be equal to."""
    head_as_stored: bool = False
    """True if the stored tensors, not config.json, decide whether the head is the token embedding."""
    beyond_ascend: str = ""
    """Names what only a CPU computes; empty if Ascend computes all."""
