"""Model: one rank of a model in memory, whoever computes it: its steps, and the cache that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # MindSpore
    from mindbatch.kernels.interface import Kernels, PagedCache
    from mindbatch.kernels.mindspore_kernels import Network
    from mindbatch.kernels.shapes import AttentionShape
    from mindbatch.kernels.step_programs import StepRecordings
    from mindbatch.models.adapter_bank import AdapterBank


@dataclass(frozen=True)
class Model:
    """Model that steps are run with.

    steps: recorded, of a model of ours; of MindFormers' what makes its network.
    attention: of a layer with the narrowest window.
    adapters: None where no tokens are computed with any.
    few_graphs: a graph takes seconds to compile, so that steps are rather padded to few sizes.
    """

    vocab_size: int
    steps: StepRecordings | Callable[[], Network]
    cache: PagedCache
    kernels: Kernels
    attention: AttentionShape
    few_graphs: bool = False
    adapters: AdapterBank | None = None
