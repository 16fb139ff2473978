"""MindSpore's strategy files, one a pipeline stage or merged, read and written.

A file is a message of Protocol Buffers (ParallelStrategyMap of mindspore/train/node_strategy_pb2.py), or JSON
with the same fields where its name ends in .json. In a merged one, parameters are named STAGE-NAME.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import MAX_LINES, collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, file_names
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS, ReadableFile
from mindbatch.checkpoint.formats.wire_format import BYTES, WireReader, bytes_field, number_field
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.checkpoint.strategy.strategy import Axes, OperatorStrategy, Strategy, TensorLayout, checked
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_signatures import foreign_format

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
    errors: list[str] = []
    strategies: list[tuple[Path, Strategy]] = []
    for name in names:
        with collecting(errors):
            strategies.append((folder / name, _read_file(file_in(folder, name))))
    raise_if_any(errors)
    return _merged(strategies)


def _merged(files: Sequence[tuple[Path, Strategy]]) -> Strategy:
    """Merges the files of several stages; files of one stage must agree."""
    if len(files) == 1:
        return files[0][1]
    stages: dict[int, tuple[Path, Strategy]] = {}
    errors: list[str] = []
    for path, strategy in files:
        first, same = stages.setdefault(strategy.stage, (path, strategy))
        if same.layouts != strategy.layouts:
            errors.append(f"{path}: stage {strategy.stage} is cut otherwise than in {first.name}")
        if strategy.num_devices != files[0][1].num_devices:
            errors.append(
                f"{path}: {strategy.num_devices} devices a stage; {files[0][0].name} has "
                f"{files[0][1].num_devices}"
            )
    if missing := sorted(set(range(len(stages))) - set(stages)):
        errors.append(f"{files[0][0].parent}: no strategy file of stage {missing[0]}")
    raise_if_any(errors)
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
        reason = foreign_format(data[:64]) or "it does not begin with a stage"
        raise CheckpointError(f"{path}: not a MindSpore strategy file: {reason}")
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
    errors: list[str] = []
    for name, item in items.items():
        errors += [f"parameter {shown(name)}: {error}" for error in _item_errors(item)]
        if len(errors) > MAX_LINES:
            break
    raise_if_any(errors, where)
    current_stage = content.get("current_stage", 0)
    return Strategy(
        tuple(_layout(name, item) for name, item in items.items()),
        tuple(OperatorStrategy(name, _stage(name, item, where)) for name, item in operators.items()),
        current_stage if _is_number(current_stage) else 0,
    )


def _item_errors(item: object) -> list[str]:
    if not isinstance(item, dict):
        return ["must be an object"]
    errors = [f"{key} is missing" for key in _NEEDED if key not in item]
    errors += [f"{key} must be a list of numbers" for key in _LISTS if not _is_list(item.get(key, []))]
    return errors + [f"{key} must be a number" for key in _NUMBERS if not _is_number(item.get(key, 0))]


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
MAX_INPUTS = 4096
"""Most inputs of an operator."""


def parse_strategy(data: bytes, where: str) -> Strategy:
    """The strategy as written, names with their stages; `where` names its origin in the CheckpointError."""
    layouts: list[TensorLayout] = []
    operators: list[OperatorStrategy] = []
    current_stage: int | None = None
    reader = WireReader.over(data, where)
    for number, entry in _fields(reader):
        if number == 1 and isinstance(entry, int) and current_stage is None:
            current_stage = entry
        elif number == 2 and isinstance(entry, WireReader):
            operators.append(_operator(entry))
        elif number == 3 and isinstance(entry, WireReader):
            layouts.append(_layout_in(entry))
        else:
            reader.refuse(f"field {number} is not one of a strategy file, or once too often")
        if len(layouts) + len(operators) > MAX_ENTRIES:
            reader.refuse(f"more than {MAX_ENTRIES} entries; no more are allowed")
    return Strategy(tuple(layouts), tuple(operators), current_stage or 0)


def _fields(reader: WireReader) -> Iterator[tuple[int, int | WireReader]]:
    """The fields of a message: numbers, or readers of what they hold."""
    while not reader.at_end:
        number, kind = reader.tag()
        yield number, reader.message() if kind == BYTES else reader.signed()


def _numbers(reader: WireReader) -> tuple[int, ...]:
    """A message that is `repeated dim = 1`."""
    values: list[int] = []
    for number, value in _fields(reader):
        if number != 1 or not isinstance(value, int) or len(values) >= MAX_DIMENSIONS:
            reader.refuse(f"must be at most {MAX_DIMENSIONS} numbers")
        values.append(value)
    return tuple(values)


def _item(reader: WireReader) -> tuple[str, WireReader]:
    """A message of a name and a message."""
    match list(islice(_fields(reader), 3)):
        case [(1, WireReader() as name), (2, WireReader() as inner)]:
            return name.text(4096), inner
    reader.refuse("must have a name and what belongs to it")


def _operator(reader: WireReader) -> OperatorStrategy:
    name, inner = _item(reader)
    stage, cuts = 0, list[tuple[int, ...]]()
    for number, entry in _fields(inner):
        if number == 1 and isinstance(entry, int) and 0 <= entry < 1 << 20:
            stage = entry
        elif number == 2 and isinstance(entry, WireReader) and len(cuts) < MAX_INPUTS:
            cuts.append(_numbers(entry))
        else:
            inner.refuse(
                f"operator {shown(name)}: field {number} is not one of a strategy, or once too often"
            )
    return OperatorStrategy(name, stage, tuple(cuts))


def _layout_in(reader: WireReader) -> TensorLayout:
    name, inner = _item(reader)
    inner.source.subject = f"parameter {shown(name)}: "
    lists: dict[int, list[tuple[int, ...]]] = {1: [], 2: [], 3: [], 4: []}
    numbers: dict[int, int] = {}
    for number, entry in _fields(inner):
        if number in lists and isinstance(entry, WireReader) and len(lists[number]) <= MAX_DIMENSIONS:
            lists[number].append(_numbers(entry))
        elif number in (5, 6, 7) and isinstance(entry, int) and number not in numbers:
            numbers[number] = entry
        else:
            inner.refuse(f"field {number} is not one of a layout, or once too often")
    if len(lists[1]) != 1 or not lists[2] or set(numbers) != {5, 6, 7}:
        inner.refuse("must have a device matrix, a tensor map, a field and an optimizer shard")
    inner.source.subject = ""
    return TensorLayout(
        name,
        device_matrix=lists[1][0],
        tensor_map=_tensor_map(lists[2]),
        param_split_shape=next(iter(lists[3]), ()),
        indices_offset=next(iter(lists[4]), ()),
        field=numbers[5],
        opt_shard_step=numbers[6],
        opt_shard_size=numbers[7],
    )


def _tensor_map(maps: Sequence[tuple[int, ...]]) -> tuple[Axes, ...]:
    """One list has an axis for each dimension; several are the axes of one dimension each."""
    if len(maps) == 1:
        return maps[0]
    return tuple(axes[0] if len(axes) == 1 else axes for axes in maps if axes)


def strategy_bytes(strategy: Strategy) -> bytes:
    return b"".join(
        [
            number_field(1, strategy.current_stage),
            *(bytes_field(2, _operator_bytes(operator)) for operator in strategy.operators),
            *(bytes_field(3, _layout_bytes(layout)) for layout in strategy.layouts),
        ]
    )


def _operator_bytes(operator: OperatorStrategy) -> bytes:
    cuts = b"".join(bytes_field(2, _numbers_bytes(cut)) for cut in operator.cuts)
    return bytes_field(1, operator.name.encode()) + bytes_field(2, number_field(1, operator.stage) + cuts)


def _layout_bytes(layout: TensorLayout) -> bytes:
    """MindSpore reads the first of each list, so none may be missing."""
    name = layout.name if layout.stage is None else f"{layout.stage}-{layout.name}"
    nested = any(isinstance(axes, tuple) for axes in layout.tensor_map)
    maps = [axes if isinstance(axes, tuple) else (axes,) for axes in layout.tensor_map]
    if not nested:
        maps = [tuple(axis for axes in maps for axis in axes)]
    content = b"".join(
        [
            bytes_field(1, _numbers_bytes(layout.device_matrix)),
            *(bytes_field(2, _numbers_bytes(axes)) for axes in maps),
            bytes_field(3, _numbers_bytes(layout.param_split_shape)),
            bytes_field(4, _numbers_bytes(layout.indices_offset)),
            number_field(5, layout.field),
            number_field(6, layout.opt_shard_step),
            number_field(7, layout.opt_shard_size),
        ]
    )
    return bytes_field(1, name.encode()) + bytes_field(2, content)


def _numbers_bytes(values: Iterable[int]) -> bytes:
    return b"".join(number_field(1, value) for value in values)
