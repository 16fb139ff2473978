"""Bindings of one rank's layers: its parameters by name, its cache, and the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindbatch.architecture.architecture import Rotary
from mindbatch.architecture.tensor_spec import Layout, Part, Sharding, TensorSpec
from mindbatch.kernels.adapters import AdaptedParameter
from mindbatch.kernels.arrays import KernelParameter
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.operations.rotation import rotary_angles
from mindbatch.kernels.recording import Symbol
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice

Tensor = Symbol
"""An array of each step that is recorded: what `forward` takes and gives."""
Parameter = TensorSpec | KernelParameter
"""A parameter of a node: its declaration, and once the node is bound the rank's array."""


def declared(
    *parts: Part,
    sharding: Sharding = Sharding.REPLICATED,
    layout: Layout = Layout.PLAIN,
    matrices: int = 0,
    split: int = 0,
) -> Parameter:
    """Declares a parameter of a node, whose attribute names it; see `TensorSpec`."""
    return TensorSpec("", parts, sharding, layout, matrices, split)


class Module:
    """A node of the tree; its children are its attributes and the items of its lists.

    A node's name is the path to it, of attributes and numbers. `forward` says what it computes, once it is
    bound to a rank; an attribute that is a `declared` parameter is the rank's array then.
    """

    forward: Callable[..., Tensor]

    def __call__(self, *inputs: object) -> Tensor:
        return self.forward(*inputs)

    def children(self, name: str = "") -> Iterator[tuple[str, Module]]:
        for key, child in vars(self).items():
            path = f"{name}.{key}" if name else key
            if isinstance(child, Module):
                yield path, child
            elif isinstance(child, list):
                yield from ((f"{path}.{number}", item) for number, item in enumerate(child))

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        for key, value in vars(self).items():
            if isinstance(value, TensorSpec):
                yield replace(value, name=f"{name}.{key}")
        for path, child in self.children(name):
            yield from child.parameters(path)

    def bind(self, name: str, rank: Rank) -> None:
        """Gives the node and all below it their weights, as a rank has them, and what else they need."""
        for key, value in [*vars(self).items()]:
            if isinstance(value, TensorSpec):
                setattr(self, key, rank.weights.parameters[f"{name}.{key}"])
        for path, child in self.children(name):
            child.bind(path, rank)


@dataclass(frozen=True)
class Weights:
    """Loaded parameters, all that the model's tree promises, as kernels keep them.

    outputs: of each matrix, whose packed shape does not tell. adapted: what adapters have for each parameter
        that any of them touches.
    """

    parameters: Mapping[str, KernelParameter]
    outputs: Mapping[str, int]
    adapted: Mapping[str, AdaptedParameter] = field(default_factory=dict)


@dataclass(frozen=True)
class Rank:
    """One rank of a model in memory.

    caches: of each of the stage's layers its keys and values, or the states of a recurrent one.
    """

    weights: Weights
    kernels: Kernels
    caches: Sequence[tuple[KernelParameter, ...]]
    stage: Stage
    shard: TensorSlice = WHOLE

    def cache_of(self, layer: int) -> tuple[KernelParameter, ...]:
        return self.caches[layer - self.stage.layers.start]


@dataclass(frozen=True)
class Tokens:
    """Symbols of a step's T tokens, named as the arrays of `kernels.step.Batch`; None where a step has none.

    shared: what the layers of a model share by name, computed once for all of them.
    """

    ids: Tensor | None = None
    positions: Tensor | None = None
    slots: Tensor | None = None
    rows: Tensor | None = None
    block_tables: Tensor | None = None
    lengths: Tensor | None = None
    adapters: Tensor | None = None
    first_positions: Tensor | None = None
    states: Tensor | None = None
    shared: dict[str, Tensor] = field(default_factory=dict)
    _angles: dict[Rotary, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def attention_inputs(self) -> tuple[Tensor | None, ...]:
        """Cache slots of the tokens and what they see, as attention takes it."""
        seen = (self.slots, self.rows, self.block_tables, self.lengths)
        return seen if self.first_positions is None else (*seen, self.first_positions, self.positions)

    @property
    def sequences(self) -> tuple[Tensor | None, ...]:
        """The sequences that tokens are of, and slots of their states, as recurrent layers take them."""
        return self.rows, self.positions, self.states

    def enter_layer(self, layer: str) -> None:
        """Names the layer of the calls that are recorded from here on."""
        if self.ids is not None:
            self.ids.recording.layer = layer

    def angles(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """cos and sin [T, rotary_dim / 2] of the tokens' positions, computed once for all layers."""
        if rotary not in self._angles:
            self._angles[rotary] = rotary_angles(
                self.positions, inverse_frequencies=rotary.inverse_frequencies, scale=rotary.scale
            )
        return self._angles[rotary]
