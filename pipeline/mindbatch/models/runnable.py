"""A model in memory, whoever made it: the graphs of a step, and the cache that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mindspore import nn

from mindbatch.cache.paged import PagedCache
from mindbatch.layers.decoder import Network


@dataclass(frozen=True)
class RunnableModel:
    """What steps are run with.

    network: takes the fields of `engine.batch.Batch`, in their order.
    dtype: of hidden states.
    table_width: see `Kernels.table_width`.
    few_graphs: a graph takes seconds to compile, so that steps are rather padded to few sizes.
    """

    vocab_size: int
    network: Network
    cache: PagedCache
    dtype: np.dtype[np.generic]
    table_width: Callable[[int, int], int]
    few_graphs: bool = False

    @property
    def decoder(self) -> nn.Cell:
        """The step without the head."""
        return self.network.decoder

    @property
    def head(self) -> nn.Cell:
        """Logits of hidden states."""
        return self.network.head
