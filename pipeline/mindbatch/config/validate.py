"""What the values of a configuration may be, alone and together; types were checked when they were given."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindbatch.config.keys import Key, SchemaKeys, schema_keys
from mindbatch.config.schema import (
    LARGEST_COUNT,
    GenerateConfig,
    ModelConfig,
    ParallelConfig,
    RuntimeConfig,
    TaskConfig,
)
from mindbatch.config.settings import shown
from mindbatch.config.sizes import parse_bytes
from mindbatch.config.suggest import did_you_mean, nearest
from mindbatch.errors import ConfigError

LARGEST_MODEL_CONFIG = 1 << 20
HALF_TYPES = ("float16", "bfloat16")


def faults_of(config: TaskConfig, keys: SchemaKeys) -> list[str]:
    """Every fault in the values of `config`, whose paths are settled; empty when it can be run."""
    faults = [*_range_faults(config, keys)]
    if isinstance(config, GenerateConfig):
        faults += _model_faults(config.model, config.runtime)
        faults += _runtime_faults(config.runtime, config.model)
        faults += _parallel_faults(config.parallel, config.model)
        faults += _decoding_faults(config)
        faults += _input_faults(config)
    return faults


def option_faults(model: ModelConfig, runtime: RuntimeConfig) -> list[str]:
    """Every fault in options given from Python, where nothing has checked the types yet."""
    faults = []
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
        value: Any = config
        for part in key.name.split("."):
            value = getattr(value, part)
        fault = _range_fault(value, key)
        if fault:
            yield f"{key.name}={shown(value)}: {fault}"


def _range_fault(value: Any, key: Key) -> str | None:
    if value is None:
        return None
    if key.choices and value not in key.choices:
        near = nearest(value, key.choices) if isinstance(value, str) else None
        return f"must be one of {', '.join(map(str, key.choices))}{did_you_mean(near)}"
    if key.minimum is not None and not key.minimum <= value <= LARGEST_COUNT:
        return f"must be from {key.minimum} to {LARGEST_COUNT}"
    return None


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
        with (folder / "config.json").open("rb") as file:
            content = json.loads(file.read(LARGEST_MODEL_CONFIG))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    heads = content.get("num_attention_heads", content.get("n_head"))
    return heads if isinstance(heads, int) and heads > 0 else None


def _decoding_faults(config: GenerateConfig) -> tuple[str, ...]:
    from mindbatch.decoding.params import DecodingParams  # NumPy: not needed to read or print a configuration

    try:
        DecodingParams(**dataclasses.asdict(config.decoding))
    except ConfigError as error:
        return error.faults
    return ()


def _input_faults(config: GenerateConfig) -> Iterator[str]:
    """Prompts come from exactly one place, and every option about them has an effect."""
    given = [name for name in ("prompts", "prompts_file", "messages") if getattr(config, name) is not None]
    given += ["interactive"] if config.interactive else []
    if not given:
        yield (
            "nothing to generate: give prompts='[\"One, two,\"]', prompts_file=FILE (- is standard input), "
            "messages=... or interactive=true"
        )
    if len(given) > 1:
        yield f"{', '.join(given)}: only one of these can be given"
    if config.system is not None and not config.chat and config.messages is None:
        yield "system: has no effect without chat=true or messages; set chat=true or remove it"
    if config.interactive:
        yield from _conversation_faults(config)
    if config.output.format == "json":
        for name in ("stream", "interactive"):
            if getattr(config, name):
                yield f"{name}=true: cannot go with output.format=json, which is written when a row is done"


def _conversation_faults(config: GenerateConfig) -> Iterator[str]:
    """What has no effect while the user is asked for prompts."""
    if config.output.file is not None:
        yield "output.file: has no effect with interactive=true, which answers on the screen; remove it"
    samples = config.decoding.num_return_sequences
    if samples > 1:
        yield (
            f"decoding.num_return_sequences={samples}: interactive=true gives one answer to each prompt; "
            "set it to 1"
        )
