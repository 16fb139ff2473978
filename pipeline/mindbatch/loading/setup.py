"""EngineSetup: everything that an engine needs except the weights, read and checked before these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.config.machine import parse_bytes
from mindbatch.config.model_schema import DEFAULT_BATCH_SIZE, ModelConfig, RuntimeConfig
from mindbatch.config_json.forms import placeholder_ids
from mindbatch.engine.settings import EngineSettings, affordable_blocks, affordable_states
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.kernels.memory import NumberType, cache_type, kernel_dtype, weight_type
from mindbatch.loading.prepared_adapters import NO_ADAPTERS, PreparedAdapters, prepare_adapters
from mindbatch.loading.providers import OpenedFolder, find_assistant, open_model, provider_of
from mindbatch.parallel.topology import WHOLE_MODEL, RankPart
from mindbatch.prompts.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mindbatch.checkpoint.folders.model_folder import ModelFolder
    from mindbatch.config.lora_schema import LoraConfig
    from mindbatch.model_spec.model_spec import ModelSpec

_STAGE_PROMPT_BYTES = 256
"""Prompt tokens in a step of a stage, times the bytes of a weight, on a CPU: products of smaller types are
faster, and reading the weights pays off with more tokens. Measured in float32 (64 to 256) and bfloat16."""


class KeptCodes(NamedTuple):
    """Weights that are kept as codes, and bytes that they take with their scales."""

    numbers: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class EngineSetup:
    """The setup of an engine, or of one rank of it, for which neither MindSpore nor the weights are loaded.

    opened: the folder of the model. assistant: the folder of the model that drafts for it, if any.
    eos_token_ids: the ids that end a sequence.
    settings: the settings of one engine. There is one engine for each pipeline stage; all share the cache.
    """

    model: ModelConfig
    runtime: RuntimeConfig
    opened: OpenedFolder
    assistant: OpenedFolder | None
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    settings: EngineSettings
    adapters: PreparedAdapters = NO_ADAPTERS

    @property
    def spec(self) -> ModelSpec:
        return self.opened.spec

    @property
    def specs(self) -> Sequence[ModelSpec]:
        return [self.spec, *([] if self.assistant is None else [self.assistant.spec])]

    @property
    def num_engines(self) -> int:
        return len(self.spec.stages)

    @property
    def num_parameters(self) -> int:
        return sum(spec.num_parameters for spec in self.specs)

    @property
    def weight_type(self) -> NumberType:
        """The type of matrices that are not kept as codes."""
        return weight_type_of(self.model, self.runtime)

    @property
    def weight_types(self) -> str:
        """Names the types of the weights."""
        if not self.kept.numbers:
            return self.weight_type.name
        share, bits = self.kept.numbers / self.num_parameters, 8 * self.kept.nbytes / self.kept.numbers
        return f"the folder's own {bits:.1f} bits ({share:.0%} of them), else in {self.weight_type.name}"

    @property
    def weight_bytes(self) -> int:
        return int(self.num_parameters * self.number_bytes)

    @cached_property
    def kept(self) -> KeptCodes:
        """The weights that are kept as they are stored; none where floats are needed of them."""
        if self.adapters.merged is not None or self.model.provider == "mindformers":
            return KeptCodes()
        from mindbatch.backends.loader import kept_as_codes
        from mindbatch.kernels.choice import keep_codes

        if not keep_codes(self.runtime.kernels, self.runtime.device_target, self.model.quantization):
            return KeptCodes()

        opened = [self.opened, *([] if self.assistant is None else [self.assistant])]
        return KeptCodes(
            *map(sum, zip(*(kept_as_codes(spec, folder) for folder, spec in opened), strict=True))
        )

    @property
    def number_bytes(self) -> float:
        """Bytes of a weight in memory, on average."""
        itemsize = self.weight_type.itemsize
        return itemsize - (self.kept.numbers * itemsize - self.kept.nbytes) / max(1, self.num_parameters)

    @property
    def stored_bytes(self) -> int:
        return self.opened.folder.nbytes + (0 if self.assistant is None else self.assistant.folder.nbytes)

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the slots for adapters, each as large as the largest adapter."""
        live = self.adapters.live
        if live is None:
            return 0
        largest = max(adapter.num_parameters for adapter in live.adapters.values())
        return live.max_loaded * largest * self.adapter_type.itemsize

    @property
    def adapter_type(self) -> NumberType:
        return kernel_dtype(self.model.dtype, self.runtime.device_target)

    @property
    def expert_bytes(self) -> int:
        return self.spec.expert_bytes(self.settings.max_batched_tokens, self.runtime.device_target)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the cache, which all engines share."""
        return self.settings.num_blocks * self.num_engines

    @property
    def num_states(self) -> int:
        """Number of slots for recurrent states, which all engines share."""
        return self.settings.num_states * self.num_engines

    @property
    def cache_tokens(self) -> int:
        return self.num_blocks * self.settings.block_size

    @property
    def cache_bytes_per_token(self) -> int:
        """KV-cache bytes per token, the assistant's included."""
        return token_bytes_of(self.model, self.runtime, *self.specs)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache, with one block more for padding."""
        blocks = (self.cache_tokens + self.settings.block_size) * self.cache_bytes_per_token
        return blocks + self.num_states * self.spec.state_bytes


def prepare(
    model: ModelConfig,
    runtime: RuntimeConfig,
    part: RankPart = WHOLE_MODEL,
    lora: LoraConfig | None = None,
    *,
    opened: OpenedFolder | None = None,
    with_tokenizer: bool = True,
) -> EngineSetup:
    """Reads a model's folder, without the weights, and its adapters. The options must be valid alone.

    part: the rank and stage to load. lora: None is without adapters.
    opened: the folder, if the caller has opened it; None opens it.
    with_tokenizer: False saves seconds for ranks that do not choose tokens.

    Raises:
        CheckpointError: the folder or an adapter is damaged or not supported.
        ConfigError: the options do not fit the model.
    """
    folder, spec = opened = opened or open_model(model, part)
    home = Path(model.tokenizer or folder.path)
    tokenizer = Tokenizer.load(home, special_tokens=model.special_tokens) if with_tokenizer else None
    assistant = find_assistant(model, opened, tokenizer, part.shard)
    smaller = None if assistant is None else assistant.spec
    settings = engine_settings(spec, model, runtime, smaller)
    start_id, placeholders = model_start_id(folder, spec), placeholder_ids(folder.config)
    settings = replace(settings, decoder_start_id=start_id, placeholders=placeholders)
    if tokenizer is not None:
        tokenizer.refuse_placeholders(placeholders)
    eos = model_eos_ids(folder, tokenizer)
    adapters = NO_ADAPTERS if lora is None else prepare_adapters(lora, opened, provider_of(model))
    return EngineSetup(model, runtime, opened, assistant, tokenizer, eos, settings, adapters)


def engine_settings(
    spec: ModelSpec, model: ModelConfig, runtime: RuntimeConfig, assistant: ModelSpec | None = None
) -> EngineSettings:
    """Computes the settings of each engine, one for each stage. The options must be valid alone.

    The engines share the cache budget with each other and with the assistant, whose cache has as many tokens.

    Raises:
        ConfigError: the device does not run the model, seq_length is beyond the model's positions, the cache
            budget is too small, the kernels do not compute in the dtype, or the device's operators do not
            take the model's sizes.
    """
    engines, seq_length = len(spec.stages), model.seq_length or spec.max_positions
    if seq_length > spec.max_positions:
        raise ConfigError(
            f"model.seq_length={seq_length}: the model has {spec.max_positions} positions; allowed: 1 to "
            f"{spec.max_positions}"
        )
    if runtime.device_target == "Ascend":
        _refuse_beyond_operators(runtime.block_size, spec, assistant)
    max_batched_tokens = _max_step_tokens(seq_length, model, runtime, spec, assistant)
    token_bytes = token_bytes_of(model, runtime, spec, assistant)
    budget = parse_bytes(runtime.cache_memory)
    two_positions = spec.architecture.two_positions
    in_chunks = model.use_past and two_positions is None
    batch_size = min(model.batch_size, max_batched_tokens)
    keeps_states = runtime.prefix_caching and model.use_past
    states = affordable_states(budget, spec.state_bytes, batch_size * (2 if keeps_states else 1), engines)
    budget -= states * engines * spec.state_bytes
    blocks = affordable_blocks(budget, token_bytes, runtime.block_size, engines)
    return EngineSettings(
        batch_size=batch_size,
        seq_length=seq_length,
        block_size=runtime.block_size,
        num_blocks=blocks,
        max_batched_tokens=max_batched_tokens,
        use_past=model.use_past,
        prefix_caching=runtime.prefix_caching,
        max_positions=spec.max_positions,
        decoder_start_id=spec.decoder_start_id,
        two_positions=two_positions,
        num_states=states,
        max_prompt_tokens=_max_prompt_tokens(model, runtime, engines) if in_chunks else None,
    )


def _max_step_tokens(
    seq_length: int, model: ModelConfig, runtime: RuntimeConfig, *models: ModelSpec | None
) -> int:
    """Returns the tokens of a step: max_batched_tokens, or fewer if the memory of attention limits them.

    Raises:
        ConfigError: a step would have fewer tokens than sequences.
    """
    bounds = [spec.max_step_tokens(runtime.device_target, seq_length) for spec in models if spec is not None]
    bound = min((limit for limit in bounds if limit is not None), default=None)
    if bound is None:
        return runtime.max_batched_tokens
    if bound < (1 if model.batch_size == DEFAULT_BATCH_SIZE else model.batch_size):
        raise ConfigError(
            f"model.batch_size={model.batch_size}: with runtime.device_target={runtime.device_target} this "
            f"model's attention gathers keys and values of {seq_length} tokens for every sequence; allowed: "
            f"1 to {bound}, or a smaller model.seq_length"
        )
    return min(bound, runtime.max_batched_tokens)


def _max_prompt_tokens(model: ModelConfig, runtime: RuntimeConfig, engines: int) -> int:
    """Returns the limit of prompt tokens in a step, if the stages of a model compute several engines in turn.

    A stage waits while another computes a longer step. Small chunks of prompts make all steps equally long.
    """
    even_share = max(1, runtime.max_batched_tokens // engines)
    if engines == 1 or runtime.device_target != "CPU":
        return even_share
    return min(even_share, _STAGE_PROMPT_BYTES // weight_type_of(model, runtime).itemsize)


def weight_type_of(model: ModelConfig, runtime: RuntimeConfig) -> NumberType:
    return weight_type(model.dtype, model.quantization, runtime.device_target)


def token_bytes_of(model: ModelConfig, runtime: RuntimeConfig, *models: ModelSpec | None) -> int:
    device = runtime.device_target
    itemsize = cache_type(model.cache_dtype, model.dtype, model.quantization, device).itemsize
    return sum(spec.cache_bytes_per_token(itemsize, device) for spec in models if spec is not None)


def _refuse_beyond_operators(block_size: int, *models: ModelSpec | None) -> None:
    errors = [error for spec in models if spec is not None for error in spec.ascend_errors(block_size)]
    if errors:
        raise ConfigError(dict.fromkeys(errors))


def model_eos_ids(folder: ModelFolder, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Finds the end-of-sequence ids in generation_config.json, else in config.json, else in the tokenizer.

    Raises:
        CheckpointError: an eos_token_id that is neither a whole number nor a list of them.
    """
    for name, source in (
        ("generation_config.json", folder.generation_config),
        ("config.json", folder.config),
    ):
        eos = (source or {}).get("eos_token_id")
        if eos is None:
            continue
        ids = eos if isinstance(eos, list) else [eos]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise CheckpointError(
                f"{folder.path / name}: eos_token_id={shown(eos)}: must be a token id or a list of token ids"
            )
        return tuple(ids)
    return () if tokenizer is None else tokenizer.eos_token_ids


def model_start_id(folder: ModelFolder, spec: ModelSpec) -> int | None:
    """Finds the start id of an encoder-decoder in generation_config.json, else in config.json.

    Other models have None.

    Raises:
        CheckpointError: a decoder_start_token_id that is not the id of a token.
    """
    start_id = (folder.generation_config or {}).get("decoder_start_token_id")
    if spec.decoder_start_id is None or start_id is None:
        return spec.decoder_start_id
    if isinstance(start_id, bool) or not isinstance(start_id, int) or not 0 <= start_id < spec.vocab_size:
        raise CheckpointError(
            f"{folder.path / 'generation_config.json'}: decoder_start_token_id={shown(start_id)}: must be "
            f"the id of a token, 0 to {spec.vocab_size - 1}"
        )
    return start_id
