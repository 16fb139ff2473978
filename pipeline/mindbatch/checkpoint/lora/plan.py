"""An adapter that is merged on the way of a reshard: what it adds to each tensor, however that is cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.lora.adapter import LoraAdapter, adapted_weights
from mindbatch.checkpoint.lora.addition import Addition, StoredMatrix
from mindbatch.checkpoint.lora.names import LoraPair
from mindbatch.checkpoint.names.named_ranks import Held
from mindbatch.checkpoint.placement.regions import Shape


@dataclass(frozen=True)
class LoraPlan:
    """An adapter that was checked against a model.

    folder, file: of the adapter and its matrices. pairs: by the model's weight. digests: of the matrices.
    inputs_first: the adapted weights are [inputs, outputs].
    """

    folder: Path
    file: Path
    scaling: float
    inputs_first: bool
    pairs: Mapping[str, LoraPair]
    digests: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Tells the adapter from others, wherever it is and whatever its scaling."""
        content = json.dumps([self.inputs_first, sorted(self.digests.items())])
        return hashlib.sha256(content.encode()).hexdigest()

    def additions(self, held: Iterable[Held]) -> tuple[Addition, ...]:
        """What is added to a tensor of a file that holds these boxes of the model's weights."""
        return tuple(self._addition(each) for each in held if each.original in self.pairs)

    def _addition(self, held: Held) -> Addition:
        a, b = (StoredMatrix(name, self.digests[name]) for name in self.pairs[held.original])
        return Addition(
            str(self.file),
            a,
            b,
            self.scaling,
            held.place,
            product=held.whole[::-1] if self.inputs_first else held.whole,
            turned=self.inputs_first != held.transposed,
        )


def plan_lora(
    adapter: LoraAdapter,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, Collection[str]],
    renames: Mapping[str, str] | None = None,
    transposed: Collection[str] | None = None,
) -> LoraPlan:
    """Plans the merge of an opened adapter, which may be closed then.

    shapes: of the model's tensors; dtypes: in which each of them is stored. renames, transposed: as in
    `adapted_weights`.

    Raises:
        CheckpointError: what `adapted_weights` refuses, and weights that are not floating-point numbers.
    """
    pairs = adapted_weights(adapter, shapes, renames, transposed)
    raise_if_any([*_dtype_faults(pairs, dtypes)], str(adapter.path))
    names = [name for pair in pairs.values() for name in pair]
    return LoraPlan(
        adapter.path,
        adapter.tensors.file(names[0]).path.resolve(),
        adapter.settings.scaling,
        adapter.settings.fan_in_fan_out,
        pairs,
        adapter.tensors.computed_digests(names),
    )


def _dtype_faults(weights: Iterable[str], dtypes: Mapping[str, Collection[str]]) -> Iterator[str]:
    for name in weights:
        if others := {*dtypes[name]}.difference(FLOAT_DTYPES):
            allowed = ", ".join(FLOAT_DTYPES)
            yield f"{shown(name)} is {min(others)}, to which nothing can be added; allowed: {allowed}"
