"""Layers of a MindFormers model that stand for all, for graphs that are compiled and never compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.backends.mindformers.description import Description

_DENSE_LAYERS = "first_k_dense_replace"


@dataclass(frozen=True)
class LayerSample:
    """layers: of the whole model. counts: how many layers each stands for. config: with these layers only."""

    layers: tuple[int, ...]
    counts: tuple[int, ...]
    config: Mapping[str, Any]


def layer_sample(model: Description, config: Mapping[str, Any]) -> LayerSample:
    """The first layer, and the first with experts where that is another: all others are like one of them.

    config: the content of config.json that `model` was described from.
    """
    dense = min(model.experts.first, model.num_layers) if model.experts is not None else 0
    if 0 < dense < model.num_layers:
        small = {**config, model.layers_key: 2, _DENSE_LAYERS: 1}
        return LayerSample((0, dense), (dense, model.num_layers - dense), small)
    return LayerSample((0,), (model.num_layers,), {**config, model.layers_key: 1})


def all_layers(model: Description, config: Mapping[str, Any]) -> LayerSample:
    """No sample."""
    return LayerSample(tuple(range(model.num_layers)), (1,) * model.num_layers, config)
