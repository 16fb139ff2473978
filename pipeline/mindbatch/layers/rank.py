"""`Module`, the base of all layers, and what a rank binds them to: parameters, cache, symbols of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindbatch.architecture.architecture import Rotary
from mindbatch.architecture.tensor_spec import Layout, Part, Sharding, TensorSpec, segments
from mindbatch.kernels.adapters import AdaptedParameter
from mindbatch.kernels.arrays import KernelParameter
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.operations.rotation import rotary_angles
from mindbatch.kernels.recording import Symbol
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice

Tensor = Symbol
"""An array of each step that is recorded: what `forward` takes and gives."""
ModuleParameter = TensorSpec | KernelParameter
"""A parameter of a node: its declaration, and once the node is bound the rank's array."""


def declared(
    *parts: Part,
    sharding: Sharding = Sharding.REPLICATED,
    layout: Layout = Layout.PLAIN,
    matrices: int = 0,
    split: int = 0,
) -> ModuleParameter:
    """Declares a parameter of a node, whose attribute names it; see `TensorSpec`."""
    return TensorSpec("", parts, sharding, layout, matrices, split, segments=segments(parts, sharding))


class Module:
    """A node of a model's tree; its children are its attributes and the items of its lists.

    A node is named by the path to it, of attributes and numbers. Once it is bound to a rank its `declared`
    parameters are the rank's arrays, and `forward` records what it computes.
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
        """Replaces the declared parameters of the node and of all below it by the rank's arrays."""
        for key, value in [*vars(self).items()]:
            if isinstance(value, TensorSpec):
                setattr(self, key, rank.weights.parameters[f"{name}.{key}"])
        for path, child in self.children(name):
            child.bind(path, rank)


@dataclass(frozen=True)
class Weights:
    """The loaded parameters of a rank by name, as its kernels keep them."""

    parameters: Mapping[str, KernelParameter]
    outputs: Mapping[str, int]
    """Outputs of each matrix, which its packed shape does not tell."""
    adapted: Mapping[str, AdaptedParameter] = field(default_factory=dict)
    """The parameters that adapters add to."""


@dataclass(frozen=True)
class Rank:
    """One rank of a model in memory."""

    weights: Weights
    kernels: Kernels
    caches: Sequence[tuple[KernelParameter, ...]]
    """Keys and values of each layer of the stage; of a recurrent layer its states."""
    stage: Stage
    shard: TensorSlice = WHOLE

    def cache_of(self, layer: int) -> tuple[KernelParameter, ...]:
        return self.caches[layer - self.stage.layers.start]


@dataclass(frozen=True)
class Tokens:
    """Symbols of a step's T tokens, named as the arrays of `kernels.step.Batch`; None for those it lacks."""

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
    """Tensors that are computed once for all layers, by name."""
    _angles: dict[Rotary, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def attention_inputs(self) -> tuple[Tensor | None, ...]:
        """The tokens' cache slots and the positions that they see, in the order of attention's inputs."""
        seen = (self.slots, self.rows, self.block_tables, self.lengths)
        return seen if self.first_positions is None else (*seen, self.first_positions, self.positions)

    @property
    def sequences(self) -> tuple[Tensor | None, ...]:
        """The tokens' sequences and the slots of their states, in the order of recurrent layers' inputs."""
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
