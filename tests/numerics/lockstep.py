"""All ranks of a tensor-parallel model in one process: their layers run as they are, in rounds.

In each round every rank runs from the beginning. Collectives that all ranks have met in before give what came
of that; at the first new one each rank leaves its part, and what follows it in this round is of no use. So
after as many rounds as there are collectives every rank has gone through. A cache that is written again with
other values meanwhile has the right ones in the end.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from mindbatch.cache.paged import allocate
from mindbatch.checkpoint.folders.model_folder import ModelWeights
from mindbatch.kernels.choice import compiled
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer_cells import as_cell
from mindbatch.kernels.native_cells import GraphCell, PlainGraphCell
from mindbatch.kernels.shapes import CacheGeometry
from mindbatch.layers.attention import attention_shape
from mindbatch.layers.builder import Layers
from mindbatch.models.architecture import Architecture
from mindbatch.models.loader import load_weights
from mindbatch.models.registry import declaration
from mindbatch.parallel.collectives import FirstColumns
from mindbatch.parallel.topology import Stage

Array = NDArray[np.float32]
Join = Callable[[Sequence[Array]], Array]
BLOCK_SIZE = 16
_NUMBERS = itertools.count()


def added(parts: Sequence[Array]) -> Array:
    """What AllReduce gives."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def joined(parts: Sequence[Array]) -> Array:
    """What AllGatherLast gives."""
    return np.concatenate(parts, axis=-1)


class Meeting:
    """Where the ranks of a group meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.results: list[Array] = []
        self._parts: list[Array] = []
        self._join: Join = added
        self._at = 0

    def begin(self) -> None:
        """A rank starts anew."""
        self._at = 0

    def meet(self, part: Array, join: Join) -> Array:
        """A rank comes to a collective; only results of earlier rounds are good."""
        at, self._at = self._at, self._at + 1
        if at < len(self.results):
            return self.results[at]
        if at == len(self.results):
            self._parts.append(part)
            self._join = join
        return join([part] * self.size)

    def end_round(self) -> bool:
        """Whether there was nothing new any more."""
        parts, self._parts = self._parts, []
        if parts:
            assert len(parts) == self.size, "not all ranks came to the same collective"
            self.results.append(self._join(parts))
        return not parts


class Collective(nn.Cell):
    """Stands in for AllReduce or AllGatherLast."""

    def __init__(self, meeting: Meeting, join: Join) -> None:
        super().__init__(auto_prefix=False)
        self.meeting = meeting
        self.join = join

    def construct(self, x: Tensor) -> Tensor:
        return Tensor(self.meeting.meet(x.asnumpy().copy(), self.join))


def model(arch: Architecture, weights: ModelWeights, kernels: Kernels) -> nn.Cell:
    """The native layers of one rank."""
    shapes = [attention_shape(arch, layer, weights.shard) for layer in range(arch.num_layers)]
    cache = allocate(shapes, CacheGeometry(1, BLOCK_SIZE), kernels)
    loaded = load_weights(arch, weights, kernels, weights.shard)
    assemble = declaration(arch.model_type).network
    assert assemble is not None
    layers = Layers(arch, loaded, kernels, weights.shard, cache.layers, Stage(range(arch.num_layers)))
    found = as_cell(assemble(layers)).set_train(False)
    for _, cell in found.cells_and_names():
        if isinstance(cell, GraphCell | PlainGraphCell):
            # Outside of graphs MindSpore takes operators with equal attributes and inputs for one another,
            # also where their outputs have other shapes.
            cell.operator.add_prim_attr("number", next(_NUMBERS))
    return found


def logits(
    arch: Architecture,
    ranks: Iterable[ModelWeights],
    kernels: Kernels,
    ids: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> list[Array]:
    """The logits [tokens, vocabulary] of one prompt on each rank; at most BLOCK_SIZE tokens."""
    opened, kernels = list(ranks), compiled(kernels)
    meeting = Meeting(len(opened))
    if len(opened) > 1:
        monkeypatch.setattr(kernels, "all_reduce", lambda piece: Collective(meeting, added))
        monkeypatch.setattr(
            kernels, "all_gather", lambda piece, total: FirstColumns(Collective(meeting, joined), total)
        )
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        models = [model(arch, rank, kernels) for rank in opened]
        while True:
            found = []
            for each in models:
                meeting.begin()
                numbers, positions, *step = _inputs(ids)
                output = each(numbers, positions, tuple(step), ())
                found.append(output[1].asnumpy().copy())  # its memory is used again
            if meeting.end_round():
                return found
    finally:
        mindspore.set_context(mode=before)
        monkeypatch.undo()


def _inputs(ids: Sequence[int]) -> list[Tensor]:
    """One sequence in block 0, as the layers take it."""
    count = len(ids)
    place, tables = np.arange(count, dtype=np.int32), np.zeros((count, 1), np.int32)
    arrays = (np.asarray(ids, np.int32), place, place, np.zeros(count, np.int32), tables, place + 1)
    return [Tensor(array.astype(np.int32)) for array in arrays]
