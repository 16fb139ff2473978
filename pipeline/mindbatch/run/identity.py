"""Fields of a run's fingerprint: all that its results depend on besides the row itself."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import xxhash

from mindbatch.checkpoint.folders.folder_files import CONFIG_FILES, TOKENIZER_FILES
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config.model_schema import ModelConfig, ParallelConfig
from mindbatch.config.model_task import quantization_of, rounded_cache
from mindbatch.dataset.data_config import COLUMNS
from mindbatch.dataset.template import template_source
from mindbatch.decoding.params import PARAMETERS
from mindbatch.io.errors import CheckpointError
from mindbatch.io.regular_file import size_and_digest
from mindbatch.loading.prepared_adapters import open_adapters
from mindbatch.loading.providers import OpenedFolder, open_assistant, open_model
from mindbatch.parallel.topology import WHOLE, Topology
from mindbatch.prompts.messages import chat_options
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.manifest import ADAPTERS

_DATA_KEYS = (*COLUMNS, "chat", "system")
"""Keys of `data` that decide how a record becomes a prompt; which records there are may change."""


def file_digest(path: Path) -> str:
    """Returns the XXH3-128 of a file's bytes, in hex. Raises CheckpointError when it cannot be read."""
    try:
        return size_and_digest(path)[1]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error


def fingerprint_fields(
    config: BatchConfig,
    digest_file: Callable[[Path], str] = file_digest,
    opened: OpenedFolder | None = None,
) -> dict[str, Any]:
    """Returns all settings that determine a row's result, by dotted name, with digests for files.

    How fast it is computed is not in it: batch size, memory, threads, the number of processes.

    digest_file: `file_digest`, or one that remembers, for several runs of one model.
    opened: the part of the first rank; None opens it.

    Raises:
        CheckpointError: the model's folder is not in order, or an adapter's.
        ConfigError: the file of the template, or that of the tools, cannot be read.
    """
    model = config.model
    topology = replica_of(config.parallel)
    folder = (opened or open_model(model, topology.part_of(0))).folder
    weights = _weights(folder, lambda rank: open_model(model, topology.part_of(rank)), topology)
    tokenizer = Path(model.tokenizer) if model.tokenizer else folder.path
    template = template_source(config.data)
    chat = chat_options(None, config.data.tools, config.data.chat_template_kwargs, prefix="data.")
    fields = {
        "weights": digest_of(weights, digest_file),
        "model.config": digest_of(_existing(folder.path, CONFIG_FILES), digest_file),
        "tokenizer": digest_of(_existing(tokenizer, TOKENIZER_FILES), digest_file),
        "assistant": _assistant_digest(model, topology, digest_file),
        **_adapter_fields(config, folder.path.resolve()),
        "model.type": model.type,
        "model.dtype": model.dtype,
        "model.quantization": quantization_of(model, folder.quantised),
        "model.cache_dtype": rounded_cache(model, config.runtime.device_target),
        "model.seq_length": model.seq_length,
        "model.provider": model.provider,
        "model.ignore_config_keys": sorted(model.ignore_config_keys),
        "model.special_tokens": model.special_tokens,
        "data.template": None if template is None else template.text,
        **{f"data.{name}": getattr(config.data, name) for name in _DATA_KEYS},
        "data.tools": chat.tools,
        "data.chat_template_kwargs": chat.chat_template_kwargs,
    }
    for name, value in dataclasses.asdict(config.decoding).items():
        fields[f"decoding.{name}"] = PARAMETERS[name].kind.read(value)
    return {name: _concealed(name, value, config.resolved_settings) for name, value in fields.items()}


def _adapter_fields(config: BatchConfig, home: Path) -> dict[str, Any]:
    """Nothing where there are none. home: of the model."""
    lora = config.lora
    if not lora.names:
        return {}
    opened = open_adapters(lora, home)
    digests = {
        f"{ADAPTERS}{name}": f"sha256:{opened[name].digest}" if name in opened else "base"
        for name in lora.names
    }
    return {**digests, "lora.default": lora.row_default, "lora.mode": lora.mode}


def _concealed(name: str, value: Any, settings: Mapping[str, Any]) -> Any:
    """Returns a value that was written with ${...}, which may be a secret, as written with a digest."""
    section, _, leaf = name.partition(".")
    written = settings.get(section, {}).get(leaf)
    if value is None or "${" not in str(written):
        return value
    text = written if isinstance(written, str) else json.dumps(written)
    digest = hashlib.blake2b(
        orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS), digest_size=16
    )
    return f"{text} (blake2b:{digest.hexdigest()})"


def replica_of(parallel: ParallelConfig) -> Topology:
    return Topology(1, parallel.model_parallel, parallel.pipeline_stage, parallel.layer_counts)


def _weights(
    folder: ModelFolder, open_part: Callable[[int], OpenedFolder], topology: Topology
) -> Sequence[Path]:
    """Returns the files of a model's weights; those of all ranks if its folder has a part for each."""
    is_cut = folder.shard != WHOLE or folder.stages > 1
    others = range(1, topology.replica_size if is_cut else 1)
    parts = [folder, *(open_part(rank).folder for rank in others)]
    return [path for part in parts for path in part.weight_paths]


def _assistant_digest(
    model: ModelConfig, topology: Topology, digest_file: Callable[[Path], str]
) -> str | None:
    """Digests the model that drafts tokens: samples have the same distribution, but not the same draws."""
    if model.assistant is None:
        return None
    slices = Topology(1, topology.model_parallel)  # its layers are never divided
    folder = open_assistant(model, slices.slice_of(0)).folder
    weights = _weights(folder, lambda rank: open_assistant(model, slices.slice_of(rank)), slices)
    return digest_of([*weights, *_existing(folder.path, CONFIG_FILES)], digest_file)


def digest_of(paths: Iterable[Path], digest_file: Callable[[Path], str] = file_digest) -> str:
    """Returns a digest of the names and the bytes of files: `xxh3-128:` and 32 hex digits. Raises
    CheckpointError: a file cannot be read."""
    total = xxhash.xxh3_128()
    for path in paths:
        total.update(orjson.dumps([path.name, digest_file(path)]))
    return f"xxh3-128:{total.hexdigest()}"


def _existing(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]
