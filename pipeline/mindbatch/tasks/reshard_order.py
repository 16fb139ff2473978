"""From the settings of `mindbatch reshard` to an order that can be carried out: planned, proved, laid out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.boxes import Shape
from mindbatch.checkpoint.ckpt_writer import ckpt_layout
from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.file_layout import FileLayout
from mindbatch.checkpoint.float_conversion import FLOAT_DTYPES
from mindbatch.checkpoint.folder_files import file_in, has_file
from mindbatch.checkpoint.placement import Placement
from mindbatch.checkpoint.plan_proof import prove
from mindbatch.checkpoint.reshard_job import jobs_of
from mindbatch.checkpoint.reshard_order import Order
from mindbatch.checkpoint.reshard_plan import ReshardPlan, TensorPlan, plan_reshard
from mindbatch.checkpoint.reshard_pool import worker_count
from mindbatch.checkpoint.strict_json import read_json_object
from mindbatch.config.schema import ReshardConfig
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.tasks.reshard_source import CONFIG_NAME, Origin

STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
BESIDE = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""What is copied along: a model folder's files besides its weights."""

_MAX_BESIDE_BYTES = 1 << 28
_DTYPE_KEYS = ("torch_dtype", "dtype")


@dataclass(frozen=True)
class Planned:
    """An order and the plan behind it. padded: the tensors that have padding."""

    order: Order
    plan: ReshardPlan
    padded: tuple[TensorPlan, ...]


def plan_order(config: ReshardConfig, origin: Origin) -> Planned:
    """Plans and proves the reshard of an opened source.

    Raises:
        ConfigError: the model cannot be cut so, or nobody knows how it is cut.
        CheckpointError: what cannot be done or stored, or a plan that is not right.
    """
    plan = plan_reshard(origin.placements, _wanted(config, origin))
    padded = prove(plan)
    dtypes = _dtypes(config, origin)
    file_of, layouts = _layouts(config, plan, dtypes)
    jobs = jobs_of(
        plan,
        origin.source.ranks,
        layouts,
        file_of,
        dtypes,
        allow_overflow=config.target.overflow == "infinity",
    )
    order = Order(
        target=Path(config.target.dir or "").resolve(),
        settings=_settings(config),
        source=origin.identity(),
        plan=_plan_digest(plan),
        layouts=layouts,
        jobs=tuple(jobs),
        beside=_beside(config, origin.folder),
        workers=worker_count(config.workers, sum(job.nbytes for job in jobs)),
        verify=config.verify,
        replace=config.target.replace,
    )
    return Planned(order, plan, padded)


def _wanted(config: ReshardConfig, origin: Origin) -> Mapping[str, Placement]:
    """Where each tensor of the source is in the target."""
    ways, stages = config.target.model_parallel, config.target.pipeline_stage
    if origin.model is not None:
        return origin.model.placed(ways, stages, is_bare=origin.is_bare, keys="target.")
    if ways * stages == 1:
        return _merged(origin.placements)
    raise ConfigError(
        f"source={origin.source.path}: no {CONFIG_NAME}, which says how the model is cut; give "
        "source_config=FOLDER of the model"
    )


def _merged(found: Mapping[str, Placement]) -> Mapping[str, Placement]:
    from mindbatch.checkpoint.placement import whole_placements

    return whole_placements({name: placement.shape for name, placement in found.items()})


def _dtypes(config: ReshardConfig, origin: Origin) -> dict[str, str]:
    """The dtype of each of the target's tensors."""
    wanted = STORED.get(config.target.dtype)
    faults, found = [], {}
    for name in origin.placements:
        dtype = origin.dtype(name)
        found[name] = wanted if wanted is not None and dtype in FLOAT_DTYPES else dtype
        if wanted is not None and dtype not in FLOAT_DTYPES and dtype.startswith(("F", "C")):
            faults.append(
                f"tensor {shown(name)}: {dtype} is not changed to {config.target.dtype}; changed are "
                f"{', '.join(FLOAT_DTYPES)}, and target.dtype=keep changes none"
            )
    raise_if_any(faults)
    return found


def _layouts(
    config: ReshardConfig, plan: ReshardPlan, dtypes: Mapping[str, str]
) -> tuple[list[str], dict[str, FileLayout]]:
    """The file of each target rank, and what is where in it."""
    num_ranks = config.target.model_parallel * config.target.pipeline_stage
    entries: list[list[tuple[str, str, Shape]]] = [[] for _ in range(num_ranks)]
    for tensor in plan.tensors:
        entries[tensor.rank].append((tensor.name, dtypes[tensor.name], tensor.shape))
    layout_of = ckpt_layout if config.target.format == "ckpt" else safetensors_of
    file_of = [_file_name(rank, num_ranks, config.target.format) for rank in range(num_ranks)]
    return file_of, {file_of[rank]: layout_of(entries[rank]) for rank in range(num_ranks)}


def safetensors_of(entries: Sequence[tuple[str, str, Shape]]) -> FileLayout:
    """The layout of a safetensors file, with the metadata that transformers asks for."""
    from mindbatch.checkpoint.safetensors_writer import safetensors_layout

    return safetensors_layout(entries)


def _file_name(rank: int, num_ranks: int, kind: str) -> str:
    if num_ranks == 1:
        return f"model.{kind}"
    return f"rank_{rank}/checkpoint_{rank}.ckpt" if kind == "ckpt" else f"rank_{rank}/model.safetensors"


def _settings(config: ReshardConfig) -> dict[str, Any]:
    target = config.target
    return {
        "model_parallel": target.model_parallel,
        "pipeline_stage": target.pipeline_stage,
        "format": target.format,
        "dtype": target.dtype,
        "overflow": target.overflow,
        "names": target.names,
    }


def _plan_digest(plan: ReshardPlan) -> str:
    """Of all copies."""
    digest = hashlib.sha256()
    for tensor in plan.tensors:
        digest.update(json.dumps([tensor.name, tensor.rank, tensor.shape, tensor.copies]).encode())
    return digest.hexdigest()


def _beside(config: ReshardConfig, folder: Path | None) -> dict[str, bytes]:
    """The model folder's other files; config.json says the dtype that the tensors have now."""
    if folder is None:
        return {}
    found = {name: _content(folder, name) for name in BESIDE if has_file(folder, name)}
    if config.target.dtype != "keep":
        found[CONFIG_NAME] = _with_dtype(folder, config.target.dtype)
    return found


def _content(folder: Path, name: str) -> bytes:
    path = file_in(folder, name)
    try:
        if path.stat().st_size > _MAX_BESIDE_BYTES:
            raise CheckpointError(f"{path}: too large; at most {_MAX_BESIDE_BYTES} bytes are allowed")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def _with_dtype(folder: Path, dtype: str) -> bytes:
    content = read_json_object(file_in(folder, CONFIG_NAME), _MAX_BESIDE_BYTES)
    keys = [key for key in _DTYPE_KEYS if key in content] or [_DTYPE_KEYS[0]]
    return (json.dumps({**content, **dict.fromkeys(keys, dtype)}, indent=2) + "\n").encode()
