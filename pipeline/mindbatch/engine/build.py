"""Putting an engine together: folder, model, kernels, cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config.memory import GIB, free_memory, parse_bytes, whole_memory
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.assistant import Assistant
from mindbatch.engine.assistant_model import AssistantFolder, find_assistant
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.engine.described import DescribedModel, open_model
from mindbatch.engine.detokenizer import IncrementalDetokenizer
from mindbatch.engine.engine import Engine, StepEngine
from mindbatch.engine.runner import Runner, StageRunner
from mindbatch.engine.settings import EngineSettings, affordable_blocks
from mindbatch.engine.virtual_engines import CachePart, VirtualEngines
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.interrupts import interruptible
from mindbatch.kernels.ascend.limits import limit_faults
from mindbatch.kernels.memory import kernel_dtype
from mindbatch.models.model_facts import ModelFacts
from mindbatch.parallel.topology import WHOLE_MODEL, ModelPart
from mindbatch.prompts.tokenizer import Tokenizer

if TYPE_CHECKING:  # MindSpore is imported where a model is loaded
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.interface import Kernels


@dataclass(frozen=True)
class LoadedModel:
    """An engine with what its users need to know of the model behind it."""

    engine: StepEngine
    facts: ModelFacts
    tokenizer: Tokenizer | None
    cache_bytes: int


def engine_settings(
    facts: ModelFacts,
    model: ModelConfig,
    runtime: RuntimeConfig,
    assistant: ModelFacts | None = None,
    engines: int = 1,
) -> EngineSettings:
    """The limits of each of so many engines for a model; the options are valid in themselves.

    The cache budget is shared with the `assistant`, whose cache holds as many tokens, and by the engines.

    Raises:
        ConfigError: the device does not run the model, seq_length is beyond the model's positions, the cache
            budget is too small, the kernels do not compute in the dtype, or the device's operators do not
            take the model's sizes.
    """
    _refuse_other_devices(runtime.device_target, facts, assistant)
    seq_length = model.seq_length or facts.max_positions
    if seq_length > facts.max_positions:
        raise ConfigError(
            f"model.seq_length={seq_length}: the model has {facts.max_positions} positions; allowed: 1 to "
            f"{facts.max_positions}"
        )
    if runtime.device_target == "Ascend":
        _refuse_beyond_operators(seq_length, runtime.block_size, facts, assistant)
    token_bytes = _token_bytes(model, runtime, facts, assistant)
    budget = parse_bytes(runtime.cache_memory)
    blocks = affordable_blocks(budget, token_bytes, runtime.block_size, engines)
    return EngineSettings(
        batch_size=model.batch_size,
        seq_length=seq_length,
        block_size=runtime.block_size,
        num_blocks=blocks,
        max_batched_tokens=runtime.max_batched_tokens,
        use_past=model.use_past,
        prefix_caching=runtime.prefix_caching,
        max_positions=facts.max_positions,
    )


def _refuse_other_devices(device: str, *models: ModelFacts | None) -> None:
    for each in models:
        if each is not None and device not in each.devices:
            raise ConfigError(
                f"runtime.device_target={device}: not for a {each.model_type} with model.provider=mindformers"
                f", which runs it as a legacy model; allowed: {', '.join(each.devices)}, or "
                "model.provider=native with its Hugging Face folder"
            )


def _token_bytes(model: ModelConfig, runtime: RuntimeConfig, *models: ModelFacts | None) -> int:
    """Bytes that a token takes in the caches of the models."""
    itemsize = kernel_dtype(model.dtype, runtime.device_target).itemsize
    return sum(each.cache_bytes_per_token(itemsize) for each in models if each is not None)


def _refuse_beyond_operators(seq_length: int, block_size: int, *models: ModelFacts | None) -> None:
    faults = [
        fault
        for each in models
        if each is not None
        for fault in limit_faults(each.head_dim, each.window, seq_length, block_size)
    ]
    if faults:
        raise ConfigError(dict.fromkeys(faults))


Notice = Callable[[str], None]


@dataclass(frozen=True)
class PreparedModel:
    """A model whose folder and options were found in order, before MindSpore is loaded.

    drafter: its assistant, if it has one.
    settings: of one engine; there are as many as stages.
    part: of the model, that this process holds.
    """

    described: DescribedModel
    drafter: AssistantFolder | None
    tokenizer: Tokenizer | None
    settings: EngineSettings
    part: ModelPart

    @property
    def num_blocks(self) -> int:
        """Of the cache, which all engines share."""
        return self.settings.num_blocks * self.part.stages

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.num_blocks * self.settings.block_size

    @property
    def assistant_facts(self) -> ModelFacts | None:
        """Of the assistant."""
        return None if self.drafter is None else self.drafter.model.facts


def prepare_model(model: ModelConfig, runtime: RuntimeConfig, part: ModelPart = WHOLE_MODEL) -> PreparedModel:
    """Reads the descriptions in a model folder; the options are valid in themselves. part: see `open_model`.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or is damaged.
        ConfigError: the options do not fit the model.
    """
    described = open_model(model, part)
    tokenizer = Tokenizer.load(Path(model.tokenizer or described.folder.path))
    drafter = find_assistant(model, described, tokenizer, part.shard)
    smaller = None if drafter is None else drafter.model.facts
    settings = engine_settings(described.facts, model, runtime, smaller, part.stages)
    return PreparedModel(described, drafter, tokenizer, settings, part)


class Runners(NamedTuple):
    """What steps of a model are computed with, and those of its assistant if it has one."""

    model: ModelRunner
    assistant: ModelRunner | None

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of all."""
        return sum(each.cache.nbytes for each in self if each is not None)


def load_model(model: ModelConfig, runtime: RuntimeConfig, notice: Notice = lambda text: None) -> LoadedModel:
    """Reads a model folder and returns an engine that is ready; the options are valid in themselves.

    notice: is told what takes time, now and whenever a graph is compiled later; "" is that it is over.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or is damaged.
        ConfigError: the options do not fit the model or this machine.
    """
    prepared = prepare_model(model, runtime)
    facts, smaller = prepared.described.facts, prepared.assistant_facts
    refuse_beyond_memory(model, runtime, prepared.cache_tokens, facts, smaller)
    runners = load_runners(prepared, model, runtime, notice)
    engine = engine_of(prepared, runners.model, runners.assistant)
    return LoadedModel(engine, facts, prepared.tokenizer, runners.cache_bytes)


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
    """
    notice("loading MindSpore")
    # MindSpore is imported only from here on: everything that can be refused without it has been. An import
    # of it that is broken off ends the process with "Fatal Python error".
    with interruptible():
        from mindbatch.engine.model_runner import ModelRunner
        from mindbatch.kernels.choice import choose_kernels
        from mindbatch.kernels.interface import CacheGeometry
        from mindbatch.parallel.context import initialise

        initialise(runtime.device_target)
        kernels = choose_kernels(runtime.kernels, runtime.device_target, runtime.num_threads, model.dtype)
        join(kernels)

    def loaded(tensors: int, total: int) -> None:
        notice(f"loading weights {100 * tensors // total}%")

    def compiling(tokens: int) -> None:
        notice(f"compiling graph for {tokens} token{'s' * (tokens > 1)}" if tokens else "")

    def run(described: DescribedModel, settings: EngineSettings) -> ModelRunner:
        geometry = CacheGeometry(prepared.num_blocks, settings.block_size)
        return ModelRunner(described.load(kernels, geometry, loaded), settings, compiling)

    settings, drafter = prepared.settings, prepared.drafter
    main = run(prepared.described, settings)
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
    constraints = ConstraintFactory(tokenizer, prepared.described.facts.vocab_size)
    eos = model_eos_ids(prepared.described.folder, tokenizer)

    def engine(runner: Runner, drafting: Runner | None) -> Engine:
        assistant = None
        if drafter is not None and drafting is not None:
            assistant = Assistant(drafting, drafter.settings(settings))
        return Engine(runner, settings, make, eos, constraints.make, assistant)

    return engine


def refuse_beyond_memory(
    model: ModelConfig,
    runtime: RuntimeConfig,
    cache_tokens: int,
    *models: ModelFacts | None,
    copies: int = 1,
) -> None:
    """ConfigError when the cache is larger than the whole memory: a part of that it may find in use.

    copies: processes on this machine, each of which has a cache of so many tokens.
    """
    token_bytes = _token_bytes(model, runtime, *models)
    there, needed = whole_memory(), copies * cache_tokens * token_bytes
    if there is not None and needed > there:
        each = f" for each of {copies} processes" if copies > 1 else ""
        free = (free_memory() or 0) / GIB
        raise ConfigError(
            f"runtime.cache_memory={runtime.cache_memory}{each}: more than the {there / GIB:.1f} GiB "
            f"there are, {free:.1f} GiB of them free; a token takes {token_bytes:,} bytes"
        )


def model_eos_ids(folder: ModelFolder, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's, else config.json's, else the tokenizer's.

    Raises:
        CheckpointError: an eos_token_id that is neither a whole number nor a list of them.
    """
    for name, source in (
        ("generation_config.json", folder.generation_config),
        ("config.json", folder.config),
    ):
        found = (source or {}).get("eos_token_id")
        if found is None:
            continue
        ids = found if isinstance(found, list) else [found]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise CheckpointError(
                f"{folder.path / name}: eos_token_id={found!r}: must be a token id or a list of token ids"
            )
        return tuple(ids)
    return () if tokenizer is None else tokenizer.eos_token_ids
