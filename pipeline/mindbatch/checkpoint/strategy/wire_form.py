"""Strategy files in Protocol Buffers: ParallelStrategyMap of mindspore/train/node_strategy_pb2.py."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS
from mindbatch.checkpoint.formats.wire_format import BYTES, WireReader, bytes_field, number_field
from mindbatch.checkpoint.strategy.strategy import Axes, OperatorStrategy, Strategy, TensorLayout

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
            layouts.append(_layout(entry))
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
    entries = list(islice(_fields(reader), 3))
    if [number for number, _ in entries] != [1, 2]:
        reader.refuse("must have a name and what belongs to it")
    name, inner = (entry for _, entry in entries)
    if isinstance(name, int) or isinstance(inner, int):
        reader.refuse("must have a name and what belongs to it")
    return name.text(4096), inner


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


def _layout(reader: WireReader) -> TensorLayout:
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
    """The content of a strategy file that MindSpore reads."""
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
