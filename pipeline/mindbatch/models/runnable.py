"""A model in memory, whoever made it: the graphs of a step, and the cache that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mindbatch.cache.paged import PagedCache
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.program.step import Programs
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.layers.decoder import Network
from mindbatch.models.adapter_bank import AdapterBank


@dataclass(frozen=True)
class RunnableModel:
    """What steps are run with.

    network: makes the model of kernels, those of `kernels.for_graph`; weights and cache are always the same.
    attention: of a layer with the narrowest window.
    adapters: None where no tokens are computed with any.
    programs: what steps are run with; None where they are compiled.
    few_graphs: a graph takes seconds to compile, so that steps are rather padded to few sizes.
    """

    vocab_size: int
    network: Callable[[Kernels], Network]
    cache: PagedCache
    kernels: Kernels
    attention: AttentionShape
    few_graphs: bool = False
    adapters: AdapterBank | None = None
    programs: Programs | None = None
