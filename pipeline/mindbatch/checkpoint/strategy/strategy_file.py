"""MindSpore's strategy files, one a pipeline stage or merged, read and written.

A file is a message of Protocol Buffers (ParallelStrategyMap of mindspore/train/node_strategy_pb2.py), or JSON
with the same fields where its name ends in .json. In a merged one, parameters are named STAGE-NAME.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import MAX_LINES, collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, file_names
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS, ReadableFile
from mindbatch.checkpoint.formats.wire_format import BYTES, VARINT, WireReader
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.checkpoint.strategy.strategy import Axes, OperatorStrategy, Strategy, TensorLayout, checked
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import foreign_format

MAX_STRATEGY_BYTES = 64 << 20
_FIRST_BYTE = 0x08  # current_stage, which must come first; a checkpoint begins with 0x0A


def strategy_name(rank: int) -> str:
    """The name of a stage's strategy file, after its first rank."""
    return f"ckpt_strategy_rank_{rank}.ckpt"


def is_strategy_file(path: Path) -> bool:
    """True if the file begins as a strategy file does. CheckpointError if it cannot be read."""
    file = ReadableFile(path)
    try:
        return file.fetch(0, 1)[0] == _FIRST_BYTE or path.suffix == ".json"
    finally:
        file.close()


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """The strategies of a file, or of all files of a folder (a file a stage), merged.

    CheckpointError lists what is wrong with them; ConfigError when there is nothing at the path.
    """
    path = Path(path)
    if path.is_file():
        return _read_file(path)
    folder = existing_folder(path)
    names = [name for name in file_names(folder) if name.endswith((".ckpt", ".json"))]
    # MindFormers' tools leave the merged file beside its sources.
    names = [name for name in names if not name.startswith("merged_ckpt_strategy")] or names
    if not names:
        raise CheckpointError(f"{folder}: no strategy file; needed are .ckpt or .json files")
    faults: list[str] = []
    strategies: list[tuple[Path, Strategy]] = []
    for name in names:
        with collecting(faults):
            strategies.append((folder / name, _read_file(file_in(folder, name))))
    raise_if_any(faults)
    return _merged(strategies)


def _merged(files: Sequence[tuple[Path, Strategy]]) -> Strategy:
    """Merges the files of several stages; files of one stage must agree."""
    if len(files) == 1:
        return files[0][1]
    stages: dict[int, tuple[Path, Strategy]] = {}
    faults: list[str] = []
    for path, strategy in files:
        first, same = stages.setdefault(strategy.stage, (path, strategy))
        if same.layouts != strategy.layouts:
            faults.append(f"{path}: stage {strategy.stage} is cut otherwise than in {first.name}")
        if strategy.num_devices != files[0][1].num_devices:
            faults.append(
                f"{path}: {strategy.num_devices} devices a stage; {files[0][0].name} has "
                f"{files[0][1].num_devices}"
            )
    if missing := sorted(set(range(len(stages))) - set(stages)):
        faults.append(f"{files[0][0].parent}: no strategy file of stage {missing[0]}")
    raise_if_any(faults)
    merged = [stages[stage][1] for stage in sorted(stages)]
    return Strategy(
        tuple(
            replace(layout, stage=file_strategy.stage_of(layout))
            for file_strategy in merged
            for layout in file_strategy.layouts
        ),
        tuple(operator for file_strategy in merged for operator in file_strategy.operators),
        1,
    )


def _read_file(path: Path) -> Strategy:
    file = ReadableFile(path)
    try:
        if file.size > MAX_STRATEGY_BYTES:
            raise CheckpointError(
                f"{path}: {file.size} bytes; a strategy file may have {MAX_STRATEGY_BYTES} at most"
            )
        return strategy_in(file.fetch(0, file.size), path)
    finally:
        file.close()


def strategy_in(data: bytes, path: Path) -> Strategy:
    """Parses a strategy file's content; the suffix of `path` gives its form.

    CheckpointError lists what is wrong with it.
    """
    if path.suffix == ".json":
        strategy = parse_strategy_json(data, str(path))
    elif data[:1] != bytes([_FIRST_BYTE]):
        what = foreign_format(data[:64]) or "it does not begin with a stage"
        raise CheckpointError(f"{path}: not a MindSpore strategy file: {what}")
    else:
        strategy = parse_strategy(data, str(path))
    return checked(strategy, str(path))


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
    """True if it is a list of numbers or of lists of numbers, as a tensor map may be."""
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


MAX_ENTRIES = 200_000
MAX_ENTRY_BYTES = 1 << 16

# As in MindSpore's node_strategy.proto, which numbers fields in this order. Names are bytes and numbers have
# 64 bits here: the same is written, and what is no text, or too large, is seen.
_SCHEMA = {
    "Numbers": ["repeated int64 dim"],
    "Operator": ["required int64 stage", "repeated Numbers parallel_strategy"],
    "OperatorItem": ["required bytes node_name", "required Operator parallel_strategys"],
    "Layout": [
        "repeated Numbers dev_matrix",
        "repeated Numbers tensor_map",
        "repeated Numbers param_split_shape",
        "repeated Numbers indices_offset",
        "required int64 field",
        "required int64 opt_weight_shard_step",
        "required int64 opt_weight_shard_size",
    ],
    "LayoutItem": ["required bytes param_name", "required Layout parallel_layouts"],
    "Map": [
        "required int64 current_stage",
        "repeated OperatorItem parallel_strategy_item",
        "repeated LayoutItem parallel_layout_item",
    ],
}


@cache
def _message(name: str) -> Any:
    """The class of a message of the schema."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # few commands need it

    file = descriptor_pb2.FileDescriptorProto(name="strategy.proto", package="mindbatch", syntax="proto2")
    for message, fields in _SCHEMA.items():
        declared = file.message_type.add(name=message)
        for number, field in enumerate(fields, 1):
            label, kind, field_name = field.split()
            added = declared.field.add(name=field_name, number=number, label=f"LABEL_{label.upper()}")
            if kind in _SCHEMA:
                added.type_name = f".mindbatch.{kind}"
            else:
                added.type = added.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mindbatch.{name}"))


def parse_strategy(data: bytes, where: str) -> Strategy:
    """The strategy as written, names with their stages; `where` names its origin in the CheckpointError.

    Entries are parsed one by one: a file of empty messages alone would take hundreds of times its size.
    """
    layouts: list[TensorLayout] = []
    operators: list[OperatorStrategy] = []
    current_stage: int | None = None
    reader = WireReader.over(data, where)
    while not reader.at_end:
        tag = reader.tag()
        if tag == (1, VARINT) and current_stage is None:
            current_stage = reader.signed()
        elif tag == (2, BYTES):
            operators.append(_operator(reader.message()))
        elif tag == (3, BYTES):
            layouts.append(_layout_in(reader.message()))
        else:
            reader.refuse(f"field {tag[0]} is not one of a strategy file, or once too often")
        if len(layouts) + len(operators) > MAX_ENTRIES:
            reader.refuse(f"more than {MAX_ENTRIES} entries; no more are allowed")
    return Strategy(tuple(layouts), tuple(operators), current_stage or 0)


def _entry(reader: WireReader, kind: str) -> Any:
    """An entry that is as protobuf writes it: every field is known, is there once, and in its order."""
    from google.protobuf.message import DecodeError

    entry, content = _message(kind)(), reader.content(MAX_ENTRY_BYTES)
    try:
        entry.ParseFromString(content)
    except DecodeError as error:
        reader.refuse(f"truncated, or no entry of a strategy file ({error})")
    if missing := entry.FindInitializationErrors():
        reader.refuse(f"must have a name and what belongs to it; {', '.join(missing)} is missing")
    entry.DiscardUnknownFields()
    if entry.SerializeToString() != content:
        reader.refuse("has a field that is not one of a strategy file, once too often, or out of its order")
    return entry


def _operator(reader: WireReader) -> OperatorStrategy:
    entry = _entry(reader, "OperatorItem")
    name, stage = _name(entry.node_name, reader), entry.parallel_strategys.stage
    if not 0 <= stage < 1 << 20:
        reader.refuse(f"operator {shown(name)}: stage {stage} must be a number from 0")
    return OperatorStrategy(name, stage)


def _layout_in(reader: WireReader) -> TensorLayout:
    entry = _entry(reader, "LayoutItem")
    name, layout = _name(entry.param_name, reader), entry.parallel_layouts
    lists = layout.dev_matrix, layout.tensor_map, layout.param_split_shape, layout.indices_offset
    matrices, maps, splits, offsets = ([tuple(numbers.dim) for numbers in messages] for messages in lists)
    if len(matrices) != 1 or not maps:
        reader.refuse(f"parameter {shown(name)}: must have a device matrix and a tensor map")
    if any(len(numbers) > MAX_DIMENSIONS for numbers in (*matrices, *maps, *splits, *offsets)):
        reader.refuse(f"parameter {shown(name)}: must be at most {MAX_DIMENSIONS} numbers")
    return TensorLayout(
        name,
        device_matrix=matrices[0],
        tensor_map=_tensor_map(maps),
        param_split_shape=splits[0] if splits else (),
        indices_offset=offsets[0] if offsets else (),
        field=layout.field,
        opt_shard_step=layout.opt_weight_shard_step,
        opt_shard_size=layout.opt_weight_shard_size,
    )


def _name(name: bytes, reader: WireReader) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        reader.refuse(f"{shown(name)} is not UTF-8 text")


def _tensor_map(maps: Sequence[tuple[int, ...]]) -> tuple[Axes, ...]:
    """One list has an axis for each dimension; several are the axes of one dimension each."""
    if len(maps) == 1:
        return maps[0]
    return tuple(axes[0] if len(axes) == 1 else axes for axes in maps if axes)


def strategy_bytes(strategy: Strategy) -> bytes:
    operators = [
        {"node_name": operator.name.encode(), "parallel_strategys": {"stage": operator.stage}}
        for operator in strategy.operators
    ]
    content: bytes = _message("Map")(
        current_stage=strategy.current_stage,
        parallel_strategy_item=operators,
        parallel_layout_item=map(_layout_item, strategy.layouts),
    ).SerializeToString()
    return content


def _layout_item(layout: TensorLayout) -> dict[str, Any]:
    """MindSpore reads the first of each list, so none may be missing."""
    name = layout.name if layout.stage is None else f"{layout.stage}-{layout.name}"
    maps = [axes if isinstance(axes, tuple) else (axes,) for axes in layout.tensor_map]
    if all(isinstance(axes, int) for axes in layout.tensor_map):
        maps = [tuple(axis for axes in maps for axis in axes)]
    return {
        "param_name": name.encode(),
        "parallel_layouts": {
            "dev_matrix": [{"dim": layout.device_matrix}],
            "tensor_map": [{"dim": axes} for axes in maps],
            "param_split_shape": [{"dim": layout.param_split_shape}],
            "indices_offset": [{"dim": layout.indices_offset}],
            "field": layout.field,
            "opt_weight_shard_step": layout.opt_shard_step,
            "opt_weight_shard_size": layout.opt_shard_size,
        },
    }
