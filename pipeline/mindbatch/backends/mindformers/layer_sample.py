"""Layers of a MindFormers model that stand for all, for graphs that are compiled and never compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.backends.mindformers.families import FAMILIES
from mindbatch.models.architecture import Architecture

_DENSE_LAYERS = "first_k_dense_replace"


@dataclass(frozen=True)
class LayerSample:
    """layers: of the whole model. counts: how many layers each stands for. config: with these layers only."""

    layers: tuple[int, ...]
    counts: tuple[int, ...]
    config: Mapping[str, Any]


def layer_sample(arch: Architecture, config: Mapping[str, Any]) -> LayerSample:
    """The first layer, and the first with experts where that is another: all others are like one of them.

    config: the content of config.json that `arch` was described from.
    """
    count = arch.num_layers
    dense = 0 if arch.experts is None else count - len(arch.experts.layers)
    layers: tuple[int, ...] = (0,)
    counts: tuple[int, ...] = (count,)
    dense_count: dict[str, int] = {}
    if 0 < dense < count:
        layers, counts, dense_count = (0, dense), (dense, count - dense), {_DENSE_LAYERS: 1}
    lists = {
        key: [value[layer] for layer in layers]
        for key, value in config.items()
        if "layer" in key and isinstance(value, list) and len(value) == count  # one entry a layer
    }
    return LayerSample(
        layers, counts, {**config, **lists, FAMILIES[arch.model_type].layers_key: len(layers), **dense_count}
    )


def all_layers(arch: Architecture, config: Mapping[str, Any]) -> LayerSample:
    """No sample."""
    return LayerSample(tuple(range(arch.num_layers)), (1,) * arch.num_layers, config)
