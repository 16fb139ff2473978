"""Models of this project: what the engine needs to know of one, and one in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mindbatch.checkpoint.faults import raise_if_any
from mindbatch.checkpoint.folders.model_folder import ModelFolder, ModelWeights
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.errors import ConfigError
from mindbatch.kernels.ascend.limits import needs_gathering
from mindbatch.kernels.memory import padded_head
from mindbatch.models.adapter_names import adapter_renames
from mindbatch.models.adapter_weights import (
    TIED_HEAD,
    FittedAdapters,
    embedding_of,
    fit_adapters,
    rank_places,
)
from mindbatch.models.architecture import Architecture
from mindbatch.models.folder_tensors import checkpoint_names
from mindbatch.models.merged_adapter import MergedAdapter, merge_native, merged_weights
from mindbatch.models.model_facts import ModelFacts
from mindbatch.models.registry import declaration, tensor_specs
from mindbatch.models.stage_cut import stage_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice

if TYPE_CHECKING:
    from mindbatch.kernels.interface import Kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.models.runnable import RunnableModel

_ONE_HOST = (
    "the ranks of a model on a CPU meet in memory of one host, or through MPI, and compute with "
    "runtime.kernels=native; allowed besides: replicas on several hosts (parallel.data_parallel), and Ascend"
)


@dataclass(frozen=True)
class NativeModel:
    """A folder that holds a model of MODEL_TYPES, or one rank of it, not yet loaded.

    shard, stage: the rank that is loaded, of a whole folder or of one that was cut for it; a stage of None is
        all layers.
    stages: of the model; all of its ranks have caches of as many tokens as that with the most layers.
    merged: the adapter that becomes part of the weights while they are read.
    """

    folder: ModelFolder
    architecture: Architecture
    shard: TensorSlice = WHOLE
    stage: Stage | None = None
    stages: tuple[Stage, ...] = ()
    merged: MergedAdapter | None = None

    @cached_property
    def facts(self) -> ModelFacts:
        """See `ModelFacts`."""
        most_layers = max((len(stage.layers) for stage in self.stages), default=None)
        facts = facts_of(self.architecture, self.shard.size, most_layers)
        return replace(facts, rank_parameters=tuple(map(self._parameters_of, self.stages)))

    def _parameters_of(self, stage: Stage) -> int:
        held = stage_specs(tensor_specs(self.architecture), stage)
        return sum(spec.numbers(self.shard) for spec in held)

    def load(
        self,
        kernels: Kernels,
        geometry: CacheGeometry,
        progress: Callable[[int, int], None],
        adapters: FittedAdapters | None = None,
    ) -> RunnableModel:
        """See `DescribedModel.load`."""
        with merged_weights(self.folder, self.merged) as folder:
            arch, shard, stage = self.architecture, self.shard, self.stage
            return load_native(arch, folder, kernels, geometry, progress, shard, stage, adapters)

    def fit_adapters(
        self, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
    ) -> FittedAdapters:
        """See `DescribedModel.fit_adapters`."""
        fitted = fit_native(self.architecture, adapters, max_loaded)
        return replace(fitted, slot_numbers=tuple(self._slot_numbers(fitted, stage) for stage in self.stages))

    def _slot_numbers(self, fitted: FittedAdapters, stage: Stage) -> int:
        places = rank_places(tensor_specs(self.architecture), fitted, self.shard, stage)
        return max(map(places.numbers, fitted.adapters.values()))

    def merge(self, adapter: LoraAdapter) -> NativeModel:
        """See `DescribedModel.merge`."""
        return replace(self, merged=merge_native(self.architecture, self.folder, adapter))


def fit_native(
    arch: Architecture, adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
) -> FittedAdapters:
    """Checks adapters, under any names that they may have for its weights, against a model of ours.

    Raises:
        CheckpointError: what does not fit, of all adapters.
    """
    specs = tensor_specs(arch)
    renames = adapter_renames(arch, source_shapes(specs))
    # PEFT adapts one user of a tensor that several have: that of T5's embedding is in neither stack.
    only_mergeable = () if arch.encoder is None else (embedding_of(specs),)
    fitted = fit_adapters(specs, adapters, max_loaded, renames, mergeable=only_mergeable)
    if arch.encoder is not None and arch.tied:
        raise_if_any([*_offset_faults(fitted)])
    return fitted


def _offset_faults(fitted: FittedAdapters) -> Iterator[str]:
    """T5 scales what its tied head takes in, ours what it gives: a bias would be scaled too."""
    for name, each in fitted.adapters.items():
        if TIED_HEAD in each.weights and each.weights[TIED_HEAD].has_bias:
            yield f"lora.adapters.{name}: a bias of the head's adapter (lora_bias) is not supported beside T5"


def facts_of(arch: Architecture, model_parallel: int = 1, num_layers: int | None = None) -> ModelFacts:
    """The sizes of a model; the cache is that of one of its ranks, of so many layers or all."""
    kv_heads = max(1, arch.kv_heads // model_parallel)
    is_rounded = arch.alibi is not None and arch.alibi.is_rounded
    return ModelFacts(
        model_type=arch.model_type,
        vocab_size=arch.vocab_size,
        max_positions=arch.max_positions,
        num_parameters=sum(spec.numbers(WHOLE) for spec in tensor_specs(arch)),
        cached_numbers=(num_layers or arch.num_layers)
        * kv_heads
        * (arch.head_dim + padded_head(arch.head_dim)),
        head_dim=arch.head_dim,
        layer_numbers=2 * kv_heads * arch.head_dim,
        has_alibi=arch.alibi is not None and not is_rounded,
        is_gathered=needs_gathering(arch.head_dim, is_rounded=is_rounded, has_softcap=arch.attention_cap > 0),
        decoder_start_id=None if arch.encoder is None else arch.encoder.start_id,
        two_positions=arch.two_positions,
        expert_numbers=_expert_numbers(arch, model_parallel),
    )


def _expert_numbers(arch: Architecture, model_parallel: int) -> int:
    """Of one row: its scores; for each expert that it chooses the row, two inner vectors, their product."""
    its = arch.experts
    if its is None:
        return 0

    def kept(experts: int, chosen: int, inner: int) -> int:
        return experts + chosen * (arch.hidden_size + 3 * -(-inner // model_parallel))

    routed = kept(its.routing.experts, its.routing.chosen, its.intermediate_size)
    return max(routed, *(kept(1, 1, inner) for inner in its.shared), 0)


def load_native(
    arch: Architecture,
    folder: ModelWeights,
    kernels: Kernels,
    geometry: CacheGeometry,
    progress: Callable[[int, int], None] | None = None,
    shard: TensorSlice | None = None,
    stage: Stage | None = None,
    adapters: FittedAdapters | None = None,
) -> RunnableModel:
    """The model, or one rank of it, with a cache of its own.

    shard: the rank; None is the one that `folder` holds.
    stage: the layers of the rank; None for all.
    adapters: that tokens may be computed with.

    Raises:
        CheckpointError: the tensors do not fit, or are damaged.
    """
    from mindbatch.cache.paged import allocate
    from mindbatch.kernels.interface import ProgramKernels
    from mindbatch.layers.attention import attention_shape
    from mindbatch.layers.rank import Rank
    from mindbatch.layers.recordings import recordings_of
    from mindbatch.models.adapter_bank import AdapterBank
    from mindbatch.models.loader import load_weights
    from mindbatch.models.runnable import RunnableModel

    rank, held = shard or folder.shard, stage or Stage(range(arch.num_layers))
    if isinstance(kernels, ProgramKernels):
        if not kernels.can_run(rank, held):
            raise ConfigError(f"runtime.kernels={kernels.name}: {_ONE_HOST}")
    elif arch.two_positions is not None:
        # Tokens of a prompt see those behind them, which operators over whole sequences do not.
        kernels = kernels.for_single_tokens()
    weights = load_weights(arch, folder, kernels, rank, progress, stage)
    bank = None
    if adapters is not None:
        places = rank_places(tensor_specs(arch), adapters, rank, held)
        bank = AdapterBank(adapters, places, (folder, checkpoint_names(arch, folder.names)), kernels)
        weights = replace(weights, adapted=bank.parameters)
    shapes = [attention_shape(arch, layer, rank) for layer in held.layers]
    cache = allocate(shapes, geometry, kernels)
    model = declaration(arch.model_type).tree(arch)
    model.bind("", Rank(weights, kernels, cache.layers, held, rank))
    recordings = recordings_of(model, adapted=bank is not None)
    narrowest = min(shapes, key=lambda shape: shape.window or math.inf)
    return RunnableModel(arch.vocab_size, recordings, cache, kernels, narrowest, adapters=bank)
