"""Strategy files in JSON, as MindSpore writes them where the name ends in .json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.checkpoint.faults import MAX_LINES, raise_if_any, shown
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy
from mindbatch.checkpoint.strategy.tensor_layout import Axes, TensorLayout
from mindbatch.errors import CheckpointError

_LISTS = ("dev_matrix", "tensor_map", "param_split_shape", "indices_offset")
_NUMBERS = ("field", "opt_weight_shard_step", "opt_weight_shard_size")
_NEEDED = ("dev_matrix", "tensor_map", *_NUMBERS)


def parse_strategy_json(data: bytes, where: str) -> Strategy:
    """The strategy as written, names with their stages; `where` names its origin in the CheckpointError."""
    content = parse_json_object(data, where)
    items, operators = content.get("parallel_layout_item"), content.get("parallel_strategy_item", {})
    if not isinstance(items, dict) or not isinstance(operators, dict):
        raise CheckpointError(
            f"{where}: not a MindSpore strategy file; parallel_layout_item must be an object of parameters"
        )
    faults: list[str] = []
    for name, item in items.items():
        faults += [f"parameter {shown(name)}: {fault}" for fault in _item_faults(item)]
        if len(faults) > MAX_LINES:
            break
    raise_if_any(faults, where)
    current_stage = content.get("current_stage", 0)
    return Strategy(
        tuple(_layout(name, item) for name, item in items.items()),
        tuple(OperatorStrategy(name, _stage(name, item, where)) for name, item in operators.items()),
        current_stage if _is_number(current_stage) else 0,
    )


def _item_faults(item: object) -> list[str]:
    if not isinstance(item, dict):
        return ["must be an object"]
    faults = [f"{key} is missing" for key in _NEEDED if key not in item]
    faults += [f"{key} must be a list of numbers" for key in _LISTS if not _is_list(item.get(key, []))]
    return faults + [f"{key} must be a number" for key in _NUMBERS if not _is_number(item.get(key, 0))]


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 31


def _is_list(value: object) -> bool:
    """Whether it is a list of numbers or of lists of numbers, as a tensor map may be."""
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        return False
    return all(
        _is_number(entry) or (isinstance(entry, list) and all(map(_is_number, entry))) for entry in value
    )


def _layout(name: str, item: Mapping[str, Any]) -> TensorLayout:
    return TensorLayout(
        name,
        device_matrix=_flat(item["dev_matrix"]),
        tensor_map=tuple(_axes(entry) for entry in item["tensor_map"]),
        param_split_shape=_flat(item.get("param_split_shape", [])),
        indices_offset=_flat(item.get("indices_offset", [])),
        field=item["field"],
        opt_shard_step=item["opt_weight_shard_step"],
        opt_shard_size=item["opt_weight_shard_size"],
    )


def _axes(entry: Any) -> Axes:
    return tuple(entry) if isinstance(entry, list) else int(entry)


def _flat(entries: Any) -> tuple[int, ...]:
    return tuple(number for entry in entries for number in (entry if isinstance(entry, list) else [entry]))


def _stage(name: str, item: object, where: str) -> int:
    stage = item.get("stage") if isinstance(item, dict) else None
    if type(stage) is int and 0 <= stage < 1 << 20:
        return stage
    raise CheckpointError(f"{where}: operator {shown(name)}: stage {shown(stage)} must be a number from 0")
