"""Division of a model over pipeline stages: which layers, and so which parameters, each stage holds."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.parallel.topology import WHOLE, DeviceMap, Stage, stage_layers

AUTO = "auto"
"""The device_map that divides the bytes of the weights."""

_LAYER = re.compile(r"layers\.(\d+)\.")
_FIRST = ("embedding.", "positions.", "encoder.", "per_layer.")
_LAST = ("norm.", "head.")
_HEAD_TIME = 0.5
"""Time of the head, as a share of that of a layer with as many numbers: prompts and new tokens about as many,
the head for new ones."""


def number_of_layers(specs: Sequence[TensorSpec]) -> int:
    return 1 + max((layer for spec in specs if (layer := layer_of(spec)) is not None), default=-1)


def layer_of(spec: TensorSpec) -> int | None:
    """The layer of a parameter; None of the ends of a decoder."""
    match = _LAYER.match(spec.name)
    return int(match[1]) if match else None


def is_tied(specs: Sequence[TensorSpec]) -> bool:
    return not any(spec.name == "head.weight" for spec in specs)


def holds(stage: Stage, spec: TensorSpec, *, tied: bool) -> bool:
    """True if a stage computes with a parameter.

    The embeddings are on the first stage, the last norm and the head on the last one, and so is the token
    embedding where it is the head too.

    Raises:
        ValueError: a name that neither a layer nor the ends of a decoder have.
    """
    layer = layer_of(spec)
    if layer is not None:
        return layer in stage.layers
    if spec.name.startswith(_LAST):
        return stage.is_last
    if not spec.name.startswith(_FIRST):
        raise ValueError(f"{spec.name}: neither a layer nor {', '.join((*_FIRST, *_LAST))}")
    return stage.is_first or (stage.is_last and tied and spec.name == "embedding.weight")


def stage_specs(specs: Sequence[TensorSpec], stage: Stage) -> list[TensorSpec]:
    tied = is_tied(specs)
    return [spec for spec in specs if holds(stage, spec, tied=tied)]


def stage_errors(layers: int, stages: int, device_map: DeviceMap = None) -> Iterator[str]:
    """Yields reasons why so many layers cannot be divided so; each begins with a key of `parallel`.

    device_map: None for as many layers to each stage, AUTO, or the number of layers of each stage.
    """
    if not 1 <= stages <= layers:
        yield f"pipeline_stage={stages}: the model has {layers} layers; allowed: 1 to {layers}"
    elif isinstance(device_map, tuple) and sum(device_map) != layers:
        even = [len(stage_layers(layers, index, stages)) for index in range(stages)]
        yield (
            f"device_map={[*device_map]}: {sum(device_map)} layers in all, and the model has {layers}; even "
            f"stages are {even}"
        )


def cut(specs: Sequence[TensorSpec], stages: int, device_map: DeviceMap = None) -> list[Stage]:
    """The stages of a model in which `stage_errors` finds nothing."""
    layers = number_of_layers(specs)
    if isinstance(device_map, tuple):
        sizes = [*device_map]
    elif device_map == AUTO:
        sizes = _sizes_by_bytes(specs, stages)
    else:
        sizes = [len(stage_layers(layers, index, stages)) for index in range(stages)]
    ends = accumulate(sizes, initial=0)
    return [Stage(range(*pair), index, stages) for index, pair in enumerate(pairwise(ends))]


def even_in_time(specs: Sequence[TensorSpec], stages: int) -> tuple[int, ...]:
    """Layers of each stage so that the slowest one takes as little time as it can.

    Numbers that are multiplied by stand for time. A token embedding is looked up; a head is computed for the
    tokens that are chosen from, and for no others of a prompt.
    """
    head = "embedding." if is_tied(specs) else "head."
    numbers = sum(spec.numbers(WHOLE) for spec in specs if spec.name.startswith(head))
    return tuple(_least_sizes(_numbers_by_layer(specs), (0, round(_HEAD_TIME * numbers)), stages))


def _sizes_by_bytes(specs: Sequence[TensorSpec], stages: int) -> list[int]:
    """Layers of each stage so that the largest stage holds as little as it can; numbers stand for bytes."""
    tied = is_tied(specs)
    first, last = (
        sum(spec.numbers(WHOLE) for spec in specs if holds(Stage(range(0), index, 2), spec, tied=tied))
        for index in range(2)
    )
    return _least_sizes(_numbers_by_layer(specs), (first, last), stages)


def _numbers_by_layer(specs: Sequence[TensorSpec]) -> list[int]:
    by_layer = [0] * number_of_layers(specs)
    for spec in specs:
        layer = layer_of(spec)
        if layer is not None:
            by_layer[layer] += spec.numbers(WHOLE)
    return by_layer


def _least_sizes(by_layer: Sequence[int], ends: tuple[int, int], stages: int) -> list[int]:
    """Layers of each stage so that the largest sum is the least; ends: what the first and last stage add.

    The least bound within which the layers fit, each stage filled from the first on; what one stage more
    could not fill is shared with those after it, for each has a layer at least.
    """
    low, high = 0, sum(by_layer) + sum(ends)
    while low < high:
        middle = (low + high) // 2
        if _filled(by_layer, ends, stages, middle) is None:
            low = middle + 1
        else:
            high = middle
    return _filled(by_layer, ends, stages, high) or []


def _filled(by_layer: Sequence[int], ends: Sequence[int], stages: int, bound: int) -> list[int] | None:
    """Layers of each stage when none holds more than the bound; None where they do not fit."""
    sizes, layer = [], 0
    for stage in range(stages):
        cost = ends[0] * (stage == 0) + ends[1] * (stage == stages - 1)
        max_layer, start = len(by_layer) - (stages - 1 - stage), layer  # a layer for each stage to come
        while layer < max_layer and cost + by_layer[layer] <= bound:
            cost += by_layer[layer]
            layer += 1
        if layer == start:
            return None
        sizes.append(layer - start)
    return sizes if layer == len(by_layer) else None
