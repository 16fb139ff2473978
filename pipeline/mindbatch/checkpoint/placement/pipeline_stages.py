"""Which stage of a pipeline holds which tensor of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mindbatch.models.tensor_spec import TensorSpec

_LAYER = re.compile(r"layers\.(\d+)\.")
_FIRST = ("embedding.", "positions.")
_LAST = ("norm.", "head.")


def number_of_layers(specs: Sequence[TensorSpec]) -> int:
    """Layers of the model that the specs declare."""
    return 1 + max((layer for spec in specs if (layer := _layer(spec)) is not None), default=-1)


def stage_of_layer(layer: int, layers: int, stages: int) -> int:
    """The stage of a layer: as many neighbours to each stage, one more to the first ones if some are over."""
    share, over = divmod(layers, stages)
    longer = over * (share + 1)
    return layer // (share + 1) if layer < longer else over + (layer - longer) // share


def stages_of(specs: Sequence[TensorSpec], stages: int) -> dict[str, set[int]]:
    """The stages that hold each checkpoint tensor, by its name.

    The embeddings are on the first stage, the last norm and the head on the last one, and so is the token
    embedding where it is the head too.

    Raises:
        ValueError: a spec with a name that neither a layer nor the ends of a decoder have.
    """
    layers = number_of_layers(specs)
    tied = not any(spec.name.startswith("head.") for spec in specs)
    found: dict[str, set[int]] = {}
    for spec in specs:
        held = _stages(spec, layers, stages, tied)
        for part in spec.parts:
            found.setdefault(part.source, set()).update(held)
    return found


def _layer(spec: TensorSpec) -> int | None:
    match = _LAYER.match(spec.name)
    return int(match[1]) if match else None


def _stages(spec: TensorSpec, layers: int, stages: int, tied: bool) -> set[int]:
    layer = _layer(spec)
    if layer is not None:
        return {stage_of_layer(layer, layers, stages)}
    if spec.name.startswith(_LAST):
        return {stages - 1}
    if not spec.name.startswith(_FIRST):
        raise ValueError(f"{spec.name}: neither a layer nor {', '.join((*_FIRST, *_LAST))}")
    return {0, stages - 1} if tied and spec.name.startswith("embedding.") else {0}
