"""The legacy network as the engine steps it: every token is a sequence of one query, as it decodes."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from mindbatch.backends.mindformers.legacy.network import CACHES, parts_of
from mindbatch.cache.block_copies import BlockCopies
from mindbatch.cache.paged import PagedCache
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.layers.decoder import Network, Tensors
from mindbatch.models.runnable import RunnableModel


class Rotations(nn.Cell):
    """Rows of MindFormers' tables of rotations for the last token of each sequence.

    Its own manager computes the same, but MindSpore would cut the subtraction over the ranks and gather its
    result: an operator without a strategy is cut along its first dimension.
    """

    def __init__(self, manager: Any) -> None:
        super().__init__(auto_prefix=False)
        self.cos, self.sin = manager.freqs_cos, manager.freqs_sin
        self.gather = ops.Gather().shard(((1, 1), (1,)))
        self.subtract = ops.Sub().shard(((1,), ()))

    def increment(self, lengths: Tensor) -> Tensors:
        """(cos, sin [T, head_dim], a tensor that is not used) at the positions lengths - 1."""
        last = self.subtract(lengths, 1)
        return self.gather(self.cos, last, 0), self.gather(self.sin, last, 0), last


class LegacyDecoder(nn.Cell):
    """Hidden states [T, hidden_size] of a step; the network finds positions by the lengths."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.expand = ops.ExpandDims().shard(((1,),))

    def construct(self, ids: Tensor, positions: Tensor, step: Tensors, adapters: Tensors) -> Tensor:
        slots, block_tables, lengths, _, _ = step
        hidden = self.network(
            self.expand(ids, 1), batch_valid_length=lengths, block_tables=block_tables, slot_mapping=slots
        )
        return hidden.reshape((ids.shape[0], -1))


class LegacyHead(nn.Cell):
    """Logits [T, vocab_size] of hidden states, gathered from all ranks along the first dimension.

    Along the last one MindSpore would split and join what it has gathered.
    """

    def __init__(self, head: nn.Cell, model_parallel: int) -> None:
        super().__init__(auto_prefix=False)
        self.head = head
        self.turn = ops.Transpose().shard(((1, model_parallel),))
        self.turn_back = ops.Transpose().shard(((1, 1),))

    def construct(self, hidden: Tensor, adapters: Tensors = ()) -> Tensor:
        return self.turn_back(self.turn(self.head(hidden), (1, 0)), (1, 0))


class CopyShards(nn.Cell):
    """As `cache.block_copies.CopyBlocks`, of tensors whose heads are cut over the ranks."""

    def __init__(self, tensors: list[Parameter], model_parallel: int) -> None:
        super().__init__(auto_prefix=False)
        self.tensors = tensors
        heads = (1, 1, model_parallel, 1)
        self.gather = ops.Gather().shard((heads, (1,)))
        self.update = ops.ScatterUpdate().shard((heads, (1,), heads))

    def construct(self, sources: Tensor, destinations: Tensor) -> Tensor:
        for tensor in self.tensors:
            self.update(tensor, destinations, self.gather(tensor, sources, 0))
        return sources


def network_cache(
    network: nn.Cell, geometry: CacheGeometry, itemsize: int, model_parallel: int
) -> PagedCache:
    """The tensors that the network has made itself. itemsize: bytes of an element."""
    managers = [attention.paged_attention_mgr for attention in parts_of(network).attentions]
    keys, values = ([getattr(each, name) for each in managers] for name in CACHES)
    copier = BlockCopies(CopyShards(keys + values, model_parallel), padding=geometry.num_blocks)
    return PagedCache(geometry, keys, values, itemsize, copier)


def assemble(
    network: nn.Cell, shape: AttentionShape, kernels: Kernels, geometry: CacheGeometry, model_parallel: int
) -> RunnableModel:
    """The step of a network whose weights are loaded. shape: of attention on this rank."""
    parts = parts_of(network)
    parts.decoder.freqs_mgr = Rotations(parts.decoder.freqs_mgr)
    network.add_flags_custom(is_first_iteration=False)
    whole = Network(LegacyDecoder(parts.decoder), LegacyHead(parts.head, model_parallel))
    cache = network_cache(network, geometry, kernels.dtype.itemsize, model_parallel)
    return RunnableModel(
        network.vocab_size, lambda _: whole, cache, kernels.for_single_tokens(), shape, few_graphs=True
    )
