"""What the values of a configuration may be, alone and together; types were checked when they were given."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.config.batch_faults import batch_faults
from mindbatch.config.input_faults import input_faults
from mindbatch.config.keys import Key, SchemaKeys, schema_keys, value_at
from mindbatch.config.layout_faults import layout_faults
from mindbatch.config.rank_table_faults import rank_table_faults
from mindbatch.config.reshard_faults import reshard_faults
from mindbatch.config.schema import (
    LARGEST_COUNT,
    BatchConfig,
    ModelConfig,
    ModelTaskConfig,
    ParallelConfig,
    PlanConfig,
    PromptTaskConfig,
    RankTableConfig,
    ReshardConfig,
    RuntimeConfig,
    TaskConfig,
)
from mindbatch.config.settings import shown
from mindbatch.config.sizes import parse_bytes
from mindbatch.config.speculation_faults import speculation_faults
from mindbatch.errors import ConfigError
from mindbatch.fault_lines import did_you_mean
from mindbatch.regular_file import first_bytes

if TYPE_CHECKING:
    from mindbatch.decoding import DecodingParams

LARGEST_MODEL_CONFIG = 1 << 20
HALF_TYPES = ("float16", "bfloat16")
SMALLEST_NPU_BLOCK = 16
WIDENING = (
    "num_return_sequences",
    "num_beams",
    "best_of",
    "num_assistant_tokens",
    "prompt_lookup_num_tokens",
)
"""The decoding parameters that make a row take several tokens of a step."""


def faults_of(config: TaskConfig, keys: SchemaKeys) -> list[str]:
    """Every fault in the values of `config`, whose paths are settled; empty when it can be run."""
    faults = [*_range_faults(config, keys)]
    if isinstance(config, ModelTaskConfig):
        faults += _ignored_faults("model.ignore_config_keys", config.model.ignore_config_keys)
    if isinstance(config, PlanConfig):
        faults += layout_faults(config, keys)
        if not config.needs_data:  # nothing is run: the rest of the keys has no part in it
            return faults
    if isinstance(config, ModelTaskConfig):
        if not (isinstance(config, PlanConfig) and config.has_ranks):  # what ranks hold, and no run
            faults += _model_faults(config.model, config.runtime)
            faults += _parallel_faults(config.parallel, config.model)
        faults += _runtime_faults(config.runtime, config.model)
        faults += _decoding_faults(config)
        faults += speculation_faults(config)
    if isinstance(config, PromptTaskConfig):
        faults += input_faults(config)
    if isinstance(config, BatchConfig):
        faults += batch_faults(config)
    if isinstance(config, RankTableConfig):
        faults += rank_table_faults(config, keys)
    if isinstance(config, ReshardConfig):
        faults += _ignored_faults("ignore_config_keys", config.ignore_config_keys)
        faults += reshard_faults(config)
    return faults


def option_faults(model: ModelConfig, runtime: RuntimeConfig) -> list[str]:
    """Every fault in options given from Python, where nothing has checked the types yet."""
    faults = [*_ignored_faults("model.ignore_config_keys", model.ignore_config_keys)]
    for section, options in (("model", model), ("runtime", runtime)):
        for key in schema_keys(type(options)).keys.values():
            value = getattr(options, key.name)
            fault = _range_fault(value, key) if key.has_type(value) else f"must be {key.expected}"
            if fault:
                faults.append(f"{section}.{key.name}={shown(value)}: {fault}")
    return faults or [*_model_faults(model, runtime), *_runtime_faults(runtime, model)]


def _range_faults(config: TaskConfig, keys: SchemaKeys) -> Iterator[str]:
    """Faults against the `choices` and `minimum` that the schema states for single keys."""
    for key in keys.keys.values():
        value = value_at(config, key.name)
        fault = _range_fault(value, key)
        if fault:
            yield f"{key.name}={shown(value)}: {fault}"


def _range_fault(value: Any, key: Key) -> str | None:
    if value is None:
        return None
    if key.choices and value not in key.choices:
        near = did_you_mean(value, key.choices) if isinstance(value, str) else ""
        return f"must be one of {', '.join(map(str, key.choices))}{near}"
    if key.minimum is not None and not key.minimum <= value <= LARGEST_COUNT:
        return f"must be from {key.minimum} to {LARGEST_COUNT}"
    return None


def _ignored_faults(name: str, keys: Any) -> Iterator[str]:
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) and key for key in keys):
        yield f"{name}={shown(keys)}: must be a list of keys of config.json"


def _model_faults(model: ModelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    if model.provider == "mindformers":
        yield "model.provider=mindformers: not available in this version; use native"
    if model.dtype in HALF_TYPES and runtime.device_target == "CPU":
        yield (
            f"model.dtype={model.dtype}: not with runtime.device_target=CPU, where MindSpore has no usable "
            "MatMul for it; use float32 (files in half precision are converted as they are read)"
        )


def _runtime_faults(runtime: RuntimeConfig, model: ModelConfig) -> Iterator[str]:
    try:
        parse_bytes(runtime.cache_memory)
    except ValueError as error:
        yield f"runtime.cache_memory={shown(runtime.cache_memory)}: {error}"
    if 0 < runtime.max_batched_tokens < model.batch_size:
        yield (
            f"runtime.max_batched_tokens={runtime.max_batched_tokens}: must be at least "
            f"model.batch_size={model.batch_size}, for each sequence takes one token of a step"
        )
    if runtime.block_size < SMALLEST_NPU_BLOCK and runtime.device_target == "Ascend":
        yield (
            f"runtime.block_size={runtime.block_size}: not with runtime.device_target=Ascend, whose "
            f"operators take blocks of {SMALLEST_NPU_BLOCK} and more"
        )


def _parallel_faults(parallel: ParallelConfig, model: ModelConfig) -> Iterator[str]:
    ways = parallel.model_parallel
    heads = attention_heads(Path(model.checkpoint_name_or_path)) if model.checkpoint_name_or_path else None
    if heads and ways > 0 and heads % ways:
        yield f"parallel.model_parallel={ways}: must divide the model's {heads} attention heads"
    for name, value in dataclasses.asdict(parallel).items():
        if value > 1:
            yield (
                f"parallel.{name}={value}: distributed launch is not available in this version: "
                f"set parallel.{name} to 1"
            )


def attention_heads(folder: Path) -> int | None:
    """The number of attention heads in the folder's config.json; None when it cannot be told from there.

    Damaged files are not reported here: the checkpoint reader says what is wrong with them.
    """
    try:
        content = json.loads(first_bytes(folder / "config.json", LARGEST_MODEL_CONFIG))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    heads = content.get("num_attention_heads", content.get("n_head"))
    return heads if isinstance(heads, int) and heads > 0 else None


def _width_faults(params: "DecodingParams", runtime: RuntimeConfig) -> Iterator[str]:
    """Whether a request's sequences, which go on together, fit one step."""
    from mindbatch.decoding.registry import strategy_for

    width = strategy_for(params).width(params) * (1 + params.num_draft_tokens)
    if width > runtime.max_batched_tokens:
        values = {name: getattr(params, name) for name in WIDENING}
        asked = [f"decoding.{name}={value}" for name, value in values.items() if value and value > 1]
        yield (
            f"{', '.join(asked or [f'decoding.top_k={params.top_k}'])}: a row then has {width} tokens in a "
            f"step, for its sequences go on together; at most runtime.max_batched_tokens="
            f"{runtime.max_batched_tokens} fit: raise that or ask for fewer"
        )


def _decoding_faults(config: ModelTaskConfig) -> Iterator[str]:
    """Faults of the decoding parameters; those of some variants of several are named with them."""
    from mindbatch.decoding.grammar import constraint_fault
    from mindbatch.decoding.params import DecodingParams  # NumPy: not needed to read or print a configuration

    variants = config.variants if config.listed_group else {"": config.decoding}
    found: dict[str, list[str]] = {}
    for name, decoding in variants.items():
        try:
            params = DecodingParams(**dataclasses.asdict(decoding))
            if fault := constraint_fault(params.regex, params.json_schema):
                raise ConfigError(fault)
            faults = [*_width_faults(params, config.runtime)]
        except ConfigError as error:
            faults = [*error.faults]
        for fault in faults:
            found.setdefault(fault, []).append(name)
    for fault, names in found.items():
        yield fault if len(names) == len(variants) else f"{', '.join(names)}: {fault}"
