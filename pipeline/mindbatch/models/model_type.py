"""What a model's file declares: how its configuration is read, its tensors, its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.tensor_spec import TensorSpec

if TYPE_CHECKING:  # MindSpore is imported where a network is made
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network


@dataclass(frozen=True)
class ModelType:
    """Models of one `model_type`.

    describe: from config.json; faults are left in the reader.
    tensors: every parameter and the checkpoint tensors it is made of.
    network: the model itself, of shared layers.
    defaults: what the model's own configuration class takes for a key that is absent.
    prefix: of the checkpoint's names; some checkpoints leave it out.
    unused_tensors: patterns of names that a checkpoint may hold though nothing reads them.
    """

    describe: Callable[[ConfigReader], Architecture]
    tensors: Callable[[Architecture], list[TensorSpec]]
    network: Callable[[Layers], Network]
    defaults: Mapping[str, Any]
    prefix: str
    unused_tensors: tuple[str, ...] = ()
