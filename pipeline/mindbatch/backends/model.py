"""Model: one rank of a model in memory, whoever computes it: its steps, their cache, its loaded adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # MindSpore, and adapters, which most jobs have not
    from mindbatch.backends.adapter_weights import AdapterTargets, FittedAdapters, Renaming
    from mindbatch.checkpoint.folders.model_folder import StoredWeights
    from mindbatch.kernels.adapters import AdaptedParameter
    from mindbatch.kernels.interface import Kernels, PagedCache
    from mindbatch.kernels.mindspore_kernels import Network
    from mindbatch.kernels.shapes import AttentionShape
    from mindbatch.kernels.step_programs import StepRecordings


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


class AdapterBank:
    """Slots 1 to max_loaded for adapters, beside slot 0, the base without any.

    names: of the adapters that may be loaded.
    """

    def __init__(
        self,
        fitted: FittedAdapters,
        targets: AdapterTargets,
        base: tuple[StoredWeights, Renaming],
        kernels: Kernels,
    ) -> None:
        """targets: of this rank. base: the model's folder, and from full names to its own."""
        self.names = tuple(fitted.adapters)
        self.max_loaded = fitted.max_loaded
        self._adapters = fitted.adapters
        self._targets = targets
        self._rows = {name: targets.row_scales(adapter, *base) for name, adapter in fitted.adapters.items()}
        ranks = [targets.ranks(adapter) for adapter in fitted.adapters.values()]
        self._store = kernels.adapter_store(targets.shapes, ranks, self.max_loaded)

    @property
    def parameters(self) -> Mapping[str, AdaptedParameter]:
        return self._store.parameters

    def load(self, slot: int, name: str) -> None:
        """Reads an adapter into a slot, which may hold another; the next step computes with the new one.

        Raises:
            CheckpointError: the adapter's files are not what they were when they were checked.
        """
        assert 1 <= slot <= self.max_loaded, slot
        self._store.write(slot, self._targets.parts(self._adapters[name], self._rows[name]))
