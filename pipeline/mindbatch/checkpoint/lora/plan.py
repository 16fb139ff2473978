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
from mindbatch.checkpoint.lora.adapter import LoraAdapter, adapted_weights
from mindbatch.checkpoint.lora.merge import Addition, StoredMatrix
from mindbatch.checkpoint.lora.names import LoraPair
from mindbatch.checkpoint.placement.placement import Segment
from mindbatch.checkpoint.placement.rank_files import StoredShard
from mindbatch.checkpoint.placement.regions import Shape, oriented

MERGED_KEY = "adapters"
"""In a marker's settings: the digests of all adapters that were ever merged, each with its scaling."""


@dataclass(frozen=True)
class LoraPlan:
    """An adapter that was checked against a model.

    path: of the adapter. pairs: by the model's weight. matrices: by name.
    inputs_first: the adapted weights are [inputs, outputs].
    """

    path: Path
    scaling: float
    inputs_first: bool
    pairs: Mapping[str, LoraPair]
    matrices: Mapping[str, StoredMatrix]

    @property
    def digest(self) -> str:
        """Tells the adapter from others, wherever it is and whatever its scaling."""
        shards = (shard for matrix in self.matrices.values() for shard in matrix.shards)
        content = json.dumps([self.inputs_first, sorted((shard.name, shard.digest) for shard in shards)])
        return hashlib.sha256(content.encode()).hexdigest()

    def additions(self, stored: StoredShard) -> tuple[Addition, ...]:
        """What is added to a stored tensor."""
        return tuple(
            self._addition(self.pairs[tensor], segment)
            for tensor, segment in stored.segments
            if tensor in self.pairs
        )

    def _addition(self, pair: LoraPair, segment: Segment) -> Addition:
        a, b = (self.matrices[name] for name in pair)
        return Addition(
            a,
            b,
            self.scaling,
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
    pairs = adapted_weights(adapter, shapes, renames, transposed)
    raise_if_any([*_dtype_faults(pairs, dtypes)], str(adapter.path))
    settings = adapter.settings
    matrices = {name: adapter.matrices[name] for pair in pairs.values() for name in pair}
    return LoraPlan(adapter.path, settings.scaling, settings.fan_in_fan_out, pairs, matrices)


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
