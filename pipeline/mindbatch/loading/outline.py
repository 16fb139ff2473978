"""A model as its folder describes it: what it takes and what would fit it, without reading its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.decoding.choice import Draft
from mindbatch.decoding.row import Row
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.engine.engine import Engine
from mindbatch.engine.runner import StepOutput
from mindbatch.engine.scheduler import Step
from mindbatch.engine.settings import EngineSettings
from mindbatch.kernels.memory import NumberType, kernel_dtype, weight_type
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.prepare import prepare_model, token_bytes_of
from mindbatch.loading.prepared_adapters import PreparedAdapters
from mindbatch.models.model_facts import ModelFacts
from mindbatch.parallel.topology import WHOLE_MODEL, ModelPart, RankPlace
from mindbatch.prompts.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelOutline:
    """The sizes of one model.

    assistant: the model that drafts for it, if any.
    settings: of one engine; there are as many as pipeline stages, which share the cache.
    stored_bytes: of the tensors in the folder. num_parameters: of the model in memory, one of a kind, and of
        its assistant. weight_type: of nearly all of them. adapter_itemsize: bytes of a number.
    cache_bytes_per_token: of one token's keys and values, the assistant's included.
    expert_bytes: that layers of experts take for the rows of the largest step.
    """

    facts: ModelFacts
    assistant: ModelFacts | None
    settings: EngineSettings
    tokenizer: Tokenizer | None
    stored_bytes: int
    num_parameters: int
    weight_type: NumberType
    adapter_itemsize: int
    cache_bytes_per_token: int
    engines: int = 1
    expert_bytes: int = 0
    adapters: PreparedAdapters = field(default_factory=PreparedAdapters)

    @property
    def weight_bytes(self) -> int:
        """Of the weights in memory."""
        return self.num_parameters * self.weight_type.itemsize

    @property
    def adapter_bytes(self) -> int:
        """Of the memory for adapters: each slot holds the largest."""
        live = self.adapters.live
        if live is None:
            return 0
        largest = max(adapter.num_parameters for adapter in live.adapters.values())
        return live.max_loaded * largest * self.adapter_itemsize

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.engines * self.settings.num_blocks * self.settings.block_size

    @property
    def cache_bytes(self) -> int:
        """Of the whole cache; a block more than it holds is for padding."""
        return (self.cache_tokens + self.settings.block_size) * self.cache_bytes_per_token

    def demand(self, model: ModelConfig, runtime: RuntimeConfig, places: Sequence[RankPlace]) -> MemoryDemand:
        """Of the ranks at these places, which are on one machine; the options are those of the outline."""
        stages, replicas = [place.stage for place in places], len({place.replica for place in places})
        live = self.adapters.live
        return MemoryDemand(
            model, runtime, self.cache_tokens, self.facts, self.assistant, stages, replicas, live
        )

    def idle_engine(self) -> Engine:
        """An engine that accepts and refuses requests as the real one does, and cannot run them."""
        vocab_size = self.facts.vocab_size
        make_constraint = ConstraintFactory(self.tokenizer, vocab_size).make
        assistant = None if self.assistant is None else _NoAssistant()
        return Engine(
            _NoModel(vocab_size),
            self.settings,
            make_constraint=make_constraint,
            assistant=assistant,
            adapters=self.adapters.known,
        )


def outline(
    model: ModelConfig,
    runtime: RuntimeConfig,
    part: ModelPart = WHOLE_MODEL,
    lora: LoraConfig | None = None,
) -> ModelOutline:
    """Reads a model folder's descriptions, and the adapters; the options are valid in themselves.

    part: see `open_model`.

    Raises:
        CheckpointError: the folder does not hold a model that is understood, or is damaged.
        ConfigError: the options do not fit the model.
    """
    prepared = prepare_model(model, runtime, part, lora)
    facts, smaller, drafter = prepared.described.facts, prepared.assistant_facts, prepared.drafter
    parameters = facts.num_parameters + (0 if smaller is None else smaller.num_parameters)
    stored_bytes = prepared.described.folder.nbytes + (0 if drafter is None else drafter.model.folder.nbytes)
    return ModelOutline(
        facts,
        smaller,
        prepared.settings,
        prepared.tokenizer,
        stored_bytes,
        parameters,
        weight_type(model.dtype, model.quantization, runtime.device_target),
        kernel_dtype(model.dtype, runtime.device_target).itemsize,
        token_bytes_of(model, runtime, facts, smaller),
        part.stages,
        facts.expert_bytes(prepared.settings.max_batched_tokens, runtime.device_target),
        prepared.adapters,
    )


class _NoModel:
    """Stands where the model would be."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def run(self, step: Step) -> StepOutput:
        """Nobody asks for it: requests are only added."""
        raise NotImplementedError


class _NoAssistant:
    """Stands where the assistant would be."""

    def propose(self, rows: Sequence[Row], counts: Sequence[int]) -> list[Draft | None]:
        """Nobody asks for it."""
        raise NotImplementedError

    def forget(self, row: Row) -> None:
        """There is nothing to forget."""
