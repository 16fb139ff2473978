"""LoraPlan: which adapter weights act on which weights of a model, whoever computes with them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.fit import BaseTensors, adapted_weights, is_turned
from mindbatch.checkpoint.lora.modules import AdaptedModule


@dataclass(frozen=True)
class LoraPlan:
    """The weights of a model that an adapter acts on, beside it, merged or resharded.

    modules: by the model's weight, that of a tied head among them.
    """

    adapter: LoraAdapter
    modules: Mapping[str, AdaptedModule]
    base: BaseTensors

    @property
    def num_parameters(self) -> int:
        """Numbers of all its arrays."""
        arrays = (array for module in self.modules.values() for array in module.arrays.values())
        return sum(math.prod(array.shape) for array in arrays)

    @cached_property
    def stored_modules(self) -> dict[str, AdaptedModule]:
        """Modules that have a tensor of their own."""
        return {weight: module for weight, module in self.modules.items() if weight in self.base.shapes}

    @cached_property
    def inputs_first(self) -> frozenset[str]:
        """The weights of these that are stored [inputs, outputs]."""
        transposed = self.base.transposed
        modules = self.stored_modules.items()
        return frozenset(
            weight for weight, module in modules if is_turned(self.adapter, module, weight, transposed)
        )

    @cached_property
    def digest(self) -> str:
        """Tells the adapter from others, wherever it is and whatever its scaling."""
        modules = self.stored_modules.items()
        arrays = (array for _, module in modules for array in module.arrays.values())
        digests = sorted((shard.name, shard.digest) for array in arrays for shard in array.shards)
        is_turned = any(weight in self.inputs_first for weight, module in modules if not module.of_tokens)
        return hashlib.sha256(json.dumps([is_turned, digests]).encode()).hexdigest()


def plan_lora(adapter: LoraAdapter, base: BaseTensors) -> LoraPlan:
    """Plans what an adapter acts on. CheckpointError: what `adapted_weights` refuses."""
    return LoraPlan(adapter, adapted_weights(adapter, base), base)
