"""Adapters beside MindFormers' network: which modules have them, and how these know a step's slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.adapters import AdaptedParameter, AdaptedShape

MOST_TOKENS = 1 << 18
"""Most tokens of a step, padding included: the size of the tensor that keeps their slots."""


class ModulePlace(NamedTuple):
    """A linear layer: what holds it, and as which attribute."""

    owner: Any
    attribute: str


class StepSlots(nn.Cell):
    """Keeps the slots of a step's tokens where the adapted layers of the same graph read them.

    MindFormers' modules hand on hidden states and nothing else. Each graph writes before it reads, so
    nothing is left of the one before.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        zeros = Tensor(np.zeros(MOST_TOKENS, np.int32))
        self.kept = Parameter(zeros, name="adapters.slots", requires_grad=False)
        self.padding = zeros

    def construct(self, adapters: tuple[Tensor, ...]) -> Tensor:
        [slots] = adapters
        return ops.assign(self.kept, ops.concat((slots, self.padding[slots.shape[0] :])))


class StepAdapters(NamedTuple):
    """Adapter parameters by the names of `adapter_specs`, and where a step's slots are kept."""

    parameters: Mapping[str, AdaptedParameter]
    slots: StepSlots

    def of(self, name: str) -> AdaptedLayer | None:
        """The adapter parameters of a layer; None where no adapter adds anything to it."""
        parameters = self.parameters.get(name)
        return None if parameters is None else AdaptedLayer(*parameters, self.slots.kept)


class AdaptedLayer(NamedTuple):
    """Adapter parameters of one layer (`AdaptedParameter`), and the slots of the step's tokens."""

    stored: tuple[Parameter, ...]
    shape: AdaptedShape
    slots: Parameter


def linear_places(network: Any) -> Iterator[tuple[str, ModulePlace]]:
    """The linear layers of a network by the names of `adapter_specs`; experts are left out."""
    yield "head.weight", ModulePlace(network.model, "output_layer")
    for index, layer in enumerate(network.model.decoder.layers):
        for name, owner, attribute in (
            ("attention.qkv", layer.self_attention, "linear_qkv"),
            ("attention.output", layer.self_attention, "linear_proj"),
            ("mlp.up", layer.mlp, "linear_fc1"),
            ("mlp.down", layer.mlp, "linear_fc2"),
        ):
            if hasattr(owner, attribute):
                yield f"layers.{index}.{name}.weight", ModulePlace(owner, attribute)
