"""Putting an engine together: a prepared model, its weights, kernels, cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.config.processors import thread_notes, usable_cores
from mindbatch.engine.adapter_slots import KnownAdapters
from mindbatch.engine.assistant import Assistant
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.engine.detokenizer import IncrementalDetokenizer
from mindbatch.engine.engine import Engine, StepEngine
from mindbatch.engine.runner import Runner, StageRunner
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.virtual_engines import CachePart, VirtualEngines
from mindbatch.interrupts import interruptible
from mindbatch.kernels.choice import kernels_in_use
from mindbatch.loading.described import DescribedModel
from mindbatch.loading.memory_check import MemoryDemand, naming_exhaustion, refuse_beyond_memory
from mindbatch.loading.prepare import PreparedModel, prepare_model
from mindbatch.models.adapter_weights import FittedAdapters
from mindbatch.models.model_facts import ModelFacts
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.screen_text import say

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.interface import Kernels

Notice = Callable[[str], None]


@dataclass(frozen=True)
class LoadedModel:
    """An engine with what its users need to know of the model behind it.

    kernels: see `kernels_in_use`.
    streams: whether streamers get the text here; of several copies of a script one shows it.
    """

    engine: StepEngine
    facts: ModelFacts
    tokenizer: Tokenizer | None
    cache_bytes: int
    adapters: KnownAdapters = field(default_factory=KnownAdapters)
    kernels: str = ""
    streams: bool = True


class Runners(NamedTuple):
    """What steps of a model are computed with, and those of its assistant if it has one."""

    model: ModelRunner
    assistant: ModelRunner | None

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of all."""
        return sum(each.cache.nbytes for each in self if each is not None)


def load_model(
    model: ModelConfig,
    runtime: RuntimeConfig,
    notice: Notice = lambda text: None,
    lora: LoraConfig | None = None,
) -> LoadedModel:
    """Reads a model folder and returns an engine that is ready; the options are valid in themselves.

    notice: is told what takes time, now and whenever a graph is compiled later; "" is that it is over.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or is damaged; or an adapter.
        ConfigError: the options do not fit the model or this machine.
    """
    prepared = prepare_model(model, runtime, lora=lora)
    refuse_beyond_memory(_demand_of(prepared, model, runtime))
    say(*thread_notes(runtime.num_threads), *prepared.adapters.warnings)
    runners = load_runners(prepared, model, runtime, notice)
    engine = engine_of(prepared, runners.model, runners.assistant)
    known, kernels = prepared.adapters.known, kernels_in_use(runtime.kernels, runtime.device_target)
    return LoadedModel(
        engine, prepared.described.facts, prepared.tokenizer, runners.cache_bytes, known, kernels
    )


def _demand_of(prepared: PreparedModel, model: ModelConfig, runtime: RuntimeConfig) -> MemoryDemand:
    """Of this process."""
    facts, smaller, live = prepared.described.facts, prepared.assistant_facts, prepared.adapters.live
    stages = [prepared.part.stage]
    return MemoryDemand(model, runtime, prepared.cache_tokens, facts, smaller, stages, adapters=live)


def load_runners(
    prepared: PreparedModel,
    model: ModelConfig,
    runtime: RuntimeConfig,
    notice: Notice,
    join: Callable[[Kernels], None] = lambda kernels: None,
) -> Runners:
    """Loads a model, or the rank of it that was prepared. notice: see `load_model`.

    join: enters the groups of the rank, once MindSpore is set up and before the first layer.

    Raises:
        CheckpointError: a tensor is damaged.
        ConfigError: this machine has not what the options ask for.
        MindBatchError: memory has run out.
    """
    notice("loading kernels")
    # MindSpore, which all but the C++ kernels need, is imported only from here on: everything that can be
    # refused without it has been. An import of it that is broken off ends the process with "Fatal Python
    # error".
    with interruptible():
        from mindbatch.engine.model_runner import ModelRunner
        from mindbatch.kernels.choice import choose_kernels
        from mindbatch.kernels.shapes import CacheGeometry

        kernels = choose_kernels(
            runtime.kernels,
            runtime.device_target,
            runtime.num_threads or usable_cores(),
            model.dtype,
            model.quantization,
            runtime.instruction_set,
            model.cache_dtype,
        )
        kernels.set_up()
        join(kernels)

    def loaded(tensors: int, total: int) -> None:
        notice(f"loading weights {100 * tensors // total}%")

    def compiling(tokens: int) -> None:
        notice(f"compiling graph for {tokens} token{'s' * (tokens > 1)}" if tokens else "")

    def run(
        described: DescribedModel, settings: EngineSettings, adapters: FittedAdapters | None = None
    ) -> ModelRunner:
        geometry = CacheGeometry(prepared.num_blocks, settings.block_size)
        with guard("loading"):
            loaded_model = described.load(kernels, geometry, loaded, adapters)
        return ModelRunner(loaded_model, settings, compiling, guard)

    guard = partial(naming_exhaustion, _demand_of(prepared, model, runtime))
    settings, drafter = prepared.settings, prepared.drafter
    main = run(prepared.described, settings, prepared.adapters.live)
    # An assistant drafts for whoever has the logits.
    drafts = drafter if prepared.part.is_last else None
    assistant = None if drafts is None else run(drafts.model, drafts.settings(settings))
    notice("")
    return Runners(main, assistant)


def engine_of(prepared: PreparedModel, runner: Runner, drafting: Runner | None) -> Engine:
    """The engine of a model over the runners of its steps and, if it has an assistant, of that one's."""
    return _engine_maker(prepared)(runner, drafting)


def virtual_engines_of(
    prepared: PreparedModel, runner: StageRunner, drafting: StageRunner | None
) -> VirtualEngines:
    """As `engine_of`, with an engine for each pipeline stage and its own blocks of the cache."""
    make, size = _engine_maker(prepared), prepared.settings.num_blocks
    firsts = [stage * size for stage in range(prepared.part.stages)]
    parts = [CachePart(runner, first) for first in firsts]
    drafters = [None if drafting is None else CachePart(drafting, first) for first in firsts]
    return VirtualEngines([make(*pair) for pair in zip(parts, drafters, strict=True)], parts)


def _engine_maker(prepared: PreparedModel) -> Callable[[Runner, Runner | None], Engine]:
    """Makes engines of a model from its runner and its assistant's."""
    settings, drafter, tokenizer = prepared.settings, prepared.drafter, prepared.tokenizer
    make = None if tokenizer is None else partial(IncrementalDetokenizer, tokenizer)
    known, slots = prepared.adapters.known, prepared.adapters.slots()
    constraints = ConstraintFactory(tokenizer, prepared.described.facts.vocab_size)

    def engine(runner: Runner, drafting: Runner | None) -> Engine:
        assistant = None
        if drafter is not None and drafting is not None:
            assistant = Assistant(drafting, drafter.settings(settings))
        eos = prepared.eos_token_ids
        return Engine(runner, settings, make, eos, constraints.make, assistant, known, slots)

    return engine
