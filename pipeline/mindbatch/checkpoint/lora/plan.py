"""Plans the merge of an adapter on the way of a reshard: what is added to each stored tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.reshard_marker import noted_settings
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.fit import adapted_weights
from mindbatch.checkpoint.lora.merge import Addition
from mindbatch.checkpoint.lora.modules import AdaptedModule
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.placement.placement import Segment
from mindbatch.checkpoint.placement.rank_files import StoredShard
from mindbatch.checkpoint.placement.regions import Shape, oriented

MERGED_KEY = "adapters"
"""In a marker's settings: the digests of all adapters that were ever merged, each with its scaling."""


@dataclass(frozen=True)
class LoraPlan:
    """An adapter that was checked against a model.

    path: of the adapter. modules: by the model's weight. inputs_first: the adapted weights are
    [inputs, outputs].
    """

    path: Path
    scaling: float
    inputs_first: bool
    modules: Mapping[str, AdaptedModule]

    @property
    def digest(self) -> str:
        """Tells the adapter from others, wherever it is and whatever its scaling."""
        arrays = (array for module in self.modules.values() for array in module.arrays.values())
        shards = (shard for array in arrays for shard in array.shards)
        content = json.dumps([self.inputs_first, sorted((shard.name, shard.digest) for shard in shards)])
        return hashlib.sha256(content.encode()).hexdigest()

    def additions(self, stored: StoredShard) -> tuple[Addition, ...]:
        """What is added to a stored tensor."""
        return tuple(
            self._addition(self.modules[tensor], segment)
            for tensor, segment in stored.segments
            if tensor in self.modules
        )

    def _addition(self, module: AdaptedModule, segment: Segment) -> Addition:
        return Addition(
            module.arrays[Role.A],
            module.arrays[Role.B],
            module.scaling,
            segment.local,
            product=oriented(segment.whole, self.inputs_first),
            inputs_first=self.inputs_first != segment.transposed,
        )


def plan_lora(
    adapter: LoraAdapter,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, Collection[str]],
    renames: Mapping[str, str] | None = None,
    transposed: Collection[str] | None = None,
) -> LoraPlan:
    """Plans the merge of an adapter.

    shapes: of the model's tensors; dtypes: in which each of them is stored. renames, transposed: as in
    `adapted_weights`.

    Raises:
        CheckpointError: what `adapted_weights` refuses, and weights that are not floating-point numbers.
    """
    modules = adapted_weights(adapter, shapes, renames, transposed)
    raise_if_any([*_dtype_faults(modules, dtypes)], str(adapter.path))
    return LoraPlan(adapter.path, adapter.settings.scaling, adapter.settings.fan_in_fan_out, modules)


def merged_before(path: Path) -> dict[str, float]:
    """The adapters that are in a checkpoint already, as far as a reshard has noted them."""
    noted = noted_settings(path).get(MERGED_KEY)
    if not isinstance(noted, dict):
        return {}
    return {str(digest): float(scaling) for digest, scaling in noted.items() if _is_number(scaling)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dtype_faults(weights: Iterable[str], dtypes: Mapping[str, Collection[str]]) -> Iterator[str]:
    for name in weights:
        if others := {*dtypes[name]}.difference(FLOAT_DTYPES):
            allowed = ", ".join(FLOAT_DTYPES)
            yield f"{shown(name)} is {min(others)}, to which nothing can be added; allowed: {allowed}"
