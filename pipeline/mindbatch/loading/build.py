"""Builds an engine from its setup: loads the kernels and the weights, and allocates the cache."""

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
    """A loaded engine, with facts that its users need.

    cache_bytes: memory of the caches. kernels: names of the kernels, as `kernels_in_use` returns them.
    streams: True if this process passes text to streamers; only one of several copies of a script does.
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
    """Loads the model of a setup, or one rank of it. notice: as in `load_engine`.

    join: joins the process groups of the rank, after MindSpore is set up and before the first layer.

    Raises:
        CheckpointError: a tensor is damaged.
        ConfigError: the options do not fit this machine.
        MindBatchError: memory has run out.
    """
    model, runtime = setup.model, setup.runtime
    notice("loading kernels")
    # MindSpore, which all but the C++ kernels need, is imported only here, after all checks that do not need
    # it. An interrupted import of it would end the process with "Fatal Python error".
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
            runtime.arithmetic,
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
    if (
        setup.assistant is not None and setup.spec.stage.is_last
    ):  # the rank with the logits has the drafts, too
        drafting = run(setup.assistant, assistant_settings(setup.assistant, setup.settings))
    notice("")
    return Runners(main, drafting)


def engine_of(setup: EngineSetup, runner: Runner, drafting: Runner | None) -> Engine:
    """Makes the engine of a model over the runner of its steps, and over the assistant's, if any."""
    return _engine_maker(setup)(runner, drafting, 0)


def dry_run_engine(setup: EngineSetup) -> Engine:
    """Makes an engine that accepts and refuses requests as the real one does, and computes nothing."""
    runner = DryRunner(setup.spec.vocab_size)
    return engine_of(setup, runner, None if setup.assistant is None else runner)


def virtual_engines_of(
    setup: EngineSetup, runner: StageRunner, drafting: StageRunner | None
) -> VirtualEngines:
    """Makes an engine for each pipeline stage, as `engine_of` does, each with its own blocks of the cache."""
    from mindbatch.engine.virtual_engines import VirtualEngines

    make = _engine_maker(setup)
    return VirtualEngines([make(runner, drafting, part) for part in range(setup.num_engines)], runner)


def _engine_maker(setup: EngineSetup) -> Callable[[Runner, Runner | None, int], Engine]:
    """Returns a function that makes engines, each over a part of the runners' caches."""
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
