"""Puts an engine together from its setup: weights, kernels, cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.config.machine import thread_notes, usable_cores
from mindbatch.engine.adapter_slots import KnownAdapters
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.engine.engine import Engine, StepEngine
from mindbatch.engine.step import DryRunner, Runner, StageRunner
from mindbatch.io.interrupts import interruptible
from mindbatch.io.screen_text import say, say_once
from mindbatch.kernels.choice import kernel_notes, kernels_in_use
from mindbatch.loading.memory_check import MemoryDemand, naming_exhaustion, refuse_beyond_memory
from mindbatch.loading.prepared_adapters import NO_ADAPTERS, PreparedAdapters
from mindbatch.loading.providers import assistant_settings, provider_of
from mindbatch.parallel.topology import RankCoordinates
from mindbatch.prompts.token_bytes import IncrementalDetokenizer

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.engine.settings import EngineSettings
    from mindbatch.engine.virtual_engines import VirtualEngines
    from mindbatch.kernels.interface import Kernels
    from mindbatch.loading.providers import OpenedFolder
    from mindbatch.loading.setup import EngineSetup
    from mindbatch.prompts.tokenizer import Tokenizer

Notice = Callable[[str], None]


@dataclass(frozen=True)
class LoadedEngine:
    """An engine that is ready, with what its users need to know of it.

    kernels: see `kernels_in_use`.
    streams: whether streamers get the text here; of several copies of a script one shows it.
    """

    engine: StepEngine
    tokenizer: Tokenizer | None
    cache_bytes: int
    adapters: KnownAdapters = field(default_factory=KnownAdapters)
    kernels: str = ""
    streams: bool = True


class Runners(NamedTuple):
    model: ModelRunner
    assistant: ModelRunner | None

    @property
    def cache_bytes(self) -> int:
        return sum(runner.cache.nbytes for runner in self if runner is not None)


def load_engine(setup: EngineSetup, notice: Notice = lambda text: None) -> LoadedEngine:
    """Reads the weights of a model and returns an engine that is ready.

    notice: shows what takes time, now and when graphs are compiled later; it is called with "" at the end.

    Raises:
        CheckpointError: a tensor is damaged.
        ConfigError: the options do not fit this machine.
    """
    runtime = setup.runtime
    refuse_beyond_memory(_demand_of(setup))
    tokenizer_warnings = () if setup.tokenizer is None else setup.tokenizer.warnings
    say(*thread_notes(runtime.num_threads), *tokenizer_warnings, *setup.adapters.warnings)
    say_once(*kernel_notes(runtime.kernels, runtime.device_target))
    runners = load_runners(setup, notice)
    engine = engine_of(setup, runners.model, runners.assistant)
    known, kernels = setup.adapters.known, kernels_in_use(runtime.kernels, runtime.device_target)
    return LoadedEngine(engine, setup.tokenizer, runners.cache_bytes, known, kernels)


def _demand_of(setup: EngineSetup) -> MemoryDemand:
    return MemoryDemand.of(setup, [RankCoordinates(0, setup.spec.stage.index, 0)])


def load_runners(
    setup: EngineSetup, notice: Notice, join: Callable[[Kernels], None] = lambda kernels: None
) -> Runners:
    """Loads a model, or the rank of it that was set up. notice: see `load_engine`.

    join: enters the groups of the rank, once MindSpore is set up and before the first layer.

    Raises:
        CheckpointError: a tensor is damaged.
        ConfigError: this machine has not what the options ask for.
        MindBatchError: memory has run out.
    """
    model, runtime = setup.model, setup.runtime
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
        opened: OpenedFolder, settings: EngineSettings, adapters: PreparedAdapters = NO_ADAPTERS
    ) -> ModelRunner:
        states = settings.num_states * setup.num_engines
        geometry = CacheGeometry(setup.num_blocks, settings.block_size, states)
        with guard("loading"), adapters.merged or nullcontext(opened.folder) as weights:
            loaded_model = load(opened.spec, weights, kernels, geometry, loaded, adapters.live)
        return ModelRunner(loaded_model, settings, compiling, guard)

    load, guard = provider_of(setup.model).load, partial(naming_exhaustion, _demand_of(setup))
    main, drafting = run(setup.opened, setup.settings, setup.adapters), None
    if setup.assistant is not None and setup.spec.stage.is_last:  # it drafts for whoever has the logits
        drafting = run(setup.assistant, assistant_settings(setup.assistant, setup.settings))
    notice("")
    return Runners(main, drafting)


def engine_of(setup: EngineSetup, runner: Runner, drafting: Runner | None) -> Engine:
    """The engine of a model over the runners of its steps and, if it has an assistant, of that one's."""
    return _engine_maker(setup)(runner, drafting, 0)


def dry_run_engine(setup: EngineSetup) -> Engine:
    """An engine that accepts and refuses requests as the real one does, and computes nothing."""
    runner = DryRunner(setup.spec.vocab_size)
    return engine_of(setup, runner, None if setup.assistant is None else runner)


def virtual_engines_of(
    setup: EngineSetup, runner: StageRunner, drafting: StageRunner | None
) -> VirtualEngines:
    """Builds as `engine_of`, an engine for each pipeline stage with its own blocks of the cache."""
    from mindbatch.engine.virtual_engines import VirtualEngines

    make = _engine_maker(setup)
    return VirtualEngines([make(runner, drafting, part) for part in range(setup.num_engines)], runner)


def _engine_maker(setup: EngineSetup) -> Callable[[Runner, Runner | None, int], Engine]:
    """Makes engines, each with a part of the runners' caches."""
    settings, opened, tokenizer = setup.settings, setup.assistant, setup.tokenizer
    make = None if tokenizer is None else partial(IncrementalDetokenizer, tokenizer)
    known, slots = setup.adapters.known, setup.adapters.slots()
    constraints = ConstraintFactory(tokenizer, setup.spec.vocab_size)

    def engine(runner: Runner, drafting: Runner | None, cache_part: int) -> Engine:
        assistant = None
        if opened is not None and drafting is not None:
            from mindbatch.engine.assistant import Assistant

            assistant = Assistant(drafting, assistant_settings(opened, settings), cache_part)
        eos = setup.eos_token_ids
        return Engine(runner, settings, make, eos, constraints.make, assistant, known, slots, cache_part)

    return engine
