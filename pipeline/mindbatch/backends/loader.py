"""Filling a model's parameters from a checkpoint: one rank's slice of a whole one, or what was cut for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from mindbatch.architecture.tensor_spec import Layout, Part, Range, Sharding, TensorSpec, shard_specs
from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.model_folder import CodedWeights, StoredWeights
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.arrays import Array, FloatArray, KernelParameter, aligned_zeros
from mindbatch.kernels.codes import Codes, CodeType, packed_type
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import FLOAT16, NumberType
from mindbatch.layers.rank import Weights
from mindbatch.model_spec.described_folder import check_tensors, checkpoint_names
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.parallel.topology import WHOLE, TensorSlice

NUMBERS_AT_ONCE = 1 << 18  # are packed while they are in the cache of a core, from memory that is used again
PANEL = 32  # outputs of a packed panel: parts of whole ones are packed fastest

LoadProgress = Callable[[int, int], None]


def load_weights(
    spec: ModelSpec, folder: StoredWeights, kernels: Kernels, progress: LoadProgress | None = None
) -> Weights:
    """Reads the parameters of the spec's rank; stored in any float type, kept in the kernels' own.

    folder: the whole model, or what was cut for this very rank.
    progress: called with (tensors done, tensors in all).

    Raises:
        CheckpointError: every tensor that is missing, unexpected, mis-shaped or damaged, by name; or the
            tensors were cut for another rank.
    """
    names = checkpoint_names(spec.architecture, folder.names)
    specs, own_specs, shard = spec.parameters, spec.stage_parameters, spec.shard
    if folder.stages > 1:
        specs = own_specs
    if folder.shard != WHOLE:
        if folder.shard != shard:
            raise CheckpointError(
                f"{folder.path}: was opened for rank {folder.shard.rank} of {folder.shard.size}; needed is "
                f"rank {shard.rank} of {shard.size}"
            )
        specs, own_specs, shard = shard_specs(specs, shard), shard_specs(own_specs, shard), WHOLE
    check_tensors(spec.architecture, specs, folder)
    parameters: dict[str, KernelParameter] = {}
    outputs = {}
    for done, parameter in enumerate(own_specs):
        if parameter.split:
            parameters |= _load_stacks(parameter, folder, names, kernels, shard)
        else:
            parameters[parameter.name] = _load(parameter, folder, names, kernels, shard)
        outputs[parameter.name] = parameter.local_outputs(shard)
        if progress is not None:
            progress(done + 1, len(own_specs))
    return Weights(parameters, outputs)


def _load(
    spec: TensorSpec, folder: StoredWeights, names: Callable[[str], str], kernels: Kernels, shard: TensorSlice
) -> KernelParameter:
    outputs, inputs = spec.local_outputs(shard), spec.local_inputs(shard)
    matrices = max(1, spec.matrices)
    kind = _code_type(spec, folder, names, kernels.code_type, shard)
    segments, padded = spec.local_segments(shard), _padded(spec, outputs, kernels)
    if kind is not None and inputs is not None:
        array = kernels.coded_zeros(kind, padded, inputs, segments)
    elif spec.layout is not Layout.PACKED or inputs is None:
        dtype = np.dtype(np.float32) if spec.layout is Layout.FLOAT32 else kernels.dtype
        array = aligned_zeros((outputs,) if inputs is None else (outputs, inputs), dtype)
    elif spec.matrices:
        array = kernels.packed_stack(matrices, outputs // matrices, inputs, segments)
    else:
        array = kernels.packed_zeros(outputs, inputs, segments)
    first, padding = 0, (padded - outputs) // matrices
    of_matrix = len(spec.parts) // matrices
    for number, part in enumerate(spec.parts):
        name = names(part.source)
        if number and number % of_matrix == 0:
            first += padding
        if kind is not None:
            for codes in _codes(part, spec.sharding, folder, name, shard, kind):
                kernels.pack_codes(array, first, kind, codes)
                first += len(codes.numbers)
            continue
        for rows in _rows(part, spec, folder, kernels, name, shard):
            # What reads them trusts it: native code would read, or write, behind the arrays.
            assert rows.shape[1:] == (() if inputs is None else (inputs,)), name
            if spec.layout is Layout.PACKED:
                _refuse_lost(kernels.pack(array, first, rows), kernels.weight_type, folder, name)
            else:
                array[first : first + len(rows)] = rows
            first += len(rows)
    return kernels.as_parameter(spec.name, array)


def _load_stacks(
    spec: TensorSpec, folder: StoredWeights, names: Callable[[str], str], kernels: Kernels, shard: TensorSlice
) -> dict[str, KernelParameter]:
    (part,) = spec.parts
    name, heads = names(part.source), spec.local_outputs(shard) // part.unit
    inputs, rest = part.inputs or 1, part.unit - spec.split
    sizes = ((inputs, spec.split), (rest, inputs))
    stacks = [kernels.packed_stack(heads, *size) for size in sizes]
    first, _ = part.output_bounds(spec.sharding, shard)
    for head in range(heads):
        low = part.first + first + head * part.unit
        rows = folder.floats(name, rows=slice(low, low + part.unit))
        for stack, (outputs, _), matrix in zip(
            stacks, sizes, (rows[: spec.split].T, rows[spec.split :]), strict=True
        ):
            numbers = np.ascontiguousarray(matrix)
            if not kernels.packs_any_float:
                numbers = _narrowed(numbers, kernels, folder, name)
            lost = kernels.pack(stack, head * kernels.stacked_outputs(outputs), numbers)
            _refuse_lost(lost, kernels.weight_type, folder, name)
    return {
        stack_name: kernels.as_parameter(stack_name, stack)
        for stack_name, stack in zip(spec.stacks, stacks, strict=True)
    }


def _padded(spec: TensorSpec, outputs: int, kernels: Kernels) -> int:
    """Outputs of a packed parameter with what is behind each of its matrices."""
    if not spec.matrices:
        return outputs
    return spec.matrices * kernels.stacked_outputs(outputs // spec.matrices)


def _narrowed(rows: FloatArray, kernels: Kernels, folder: StoredWeights, name: str) -> Array:
    """The rows in the kernels' type; for float32 the very same memory.

    Raises:
        CheckpointError: finite numbers that the type does not reach.
    """
    narrow, lost = converted(rows, "F32", kernels.float_type.stored)
    _refuse_lost(lost, kernels.float_type, folder, name)
    return narrow.view(kernels.dtype)


def _refuse_lost(lost: int, kind: NumberType, folder: StoredWeights, name: str) -> None:
    """CheckpointError when there are finite numbers that a type does not reach."""
    if lost:
        allowed = "bfloat16" if kind == FLOAT16 else "auto"
        raise CheckpointError(
            f"{folder.path}: tensor {shown(name)}: {lost} numbers are beyond {kind.name}; "
            f"allowed: model.dtype={allowed}"
        )


def _rows(
    part: Part, spec: TensorSpec, folder: StoredWeights, kernels: Kernels, name: str, shard: TensorSlice
) -> Iterator[Array]:
    """This rank's outputs of a part in order, some at a time: [n, inputs], or [n] of a vector.

    They are in the type that the parameter is kept in, or in any float type where the kernels pack any.
    """
    height = 0 if part.matrix is None else folder.info(name).shape[-2]
    if spec.layout is Layout.PACKED and kernels.packs_any_float:
        yield from _read(part, spec.sharding, partial(folder.floats, name, is_widened=False), shard, height)
    else:
        for rows in _read(part, spec.sharding, partial(folder.floats, name), shard, height):
            yield rows if spec.layout is Layout.FLOAT32 else _narrowed(rows, kernels, folder, name)


def _read(
    part: Part, sharding: Sharding, values: Callable[..., Array], shard: TensorSlice, height: int
) -> Iterator[Array]:
    """height: rows of each matrix of a stack, which is read as one matrix below another."""
    above = (part.matrix or 0) * height
    ranges = part.source_ranges(*part.output_bounds(sharding, shard))
    inputs = slice(*part.input_bounds(sharding, shard))
    if part.inputs is None:
        for low, high in ranges:
            yield values(rows=slice(low, high))
    elif part.transposed:
        rows = slice(above + inputs.start, above + inputs.stop)
        for low, high in ranges:
            yield values(rows=rows, columns=slice(low, high)).T
    else:
        for rows in _some_rows([(above + low, above + high) for low, high in ranges], part.inputs):
            yield values(rows=rows, columns=inputs)


def _some_rows(ranges: Sequence[Range], inputs: int) -> Iterator[slice]:
    step = max(1, NUMBERS_AT_ONCE // inputs // PANEL) * PANEL
    return (slice(row, min(row + step, high)) for low, high in ranges for row in range(low, high, step))


def kept_as_codes(spec: ModelSpec, folder: StoredWeights) -> tuple[int, int]:
    """Numbers of the model's matrices that native kernels keep as codes, and the bytes that they take."""
    numbers = nbytes = 0
    if not isinstance(folder, CodedWeights):
        return numbers, nbytes
    names = checkpoint_names(spec.architecture, folder.names)
    for parameter in spec.parameters:
        outputs, inputs = parameter.local_outputs(WHOLE), parameter.local_inputs(WHOLE)
        kind = None if parameter.split else _code_type(parameter, folder, names, packed_type, WHOLE)
        if kind is not None and inputs is not None:
            numbers += outputs * inputs
            nbytes += outputs * kind.nbytes(inputs)
    return numbers, nbytes


def _code_type(
    spec: TensorSpec,
    folder: StoredWeights,
    names: Callable[[str], str],
    chosen: Callable[[Collection[CodeType], int], CodeType | None],
    shard: TensorSlice,
) -> CodeType | None:
    """The type in which the codes of a matrix are kept; None if they become floats.

    chosen: `Kernels.code_type`.
    """
    inputs = spec.local_inputs(shard)
    if spec.layout is not Layout.PACKED or inputs is None or not isinstance(folder, CodedWeights):
        return None
    stored = dict.fromkeys(folder.code_type(names(part.source)) for part in spec.parts)
    kinds = [kind for kind in stored if kind is not None]
    # Of stored transposes only those of stacks are read by outputs.
    if len(kinds) < len(stored) or any(part.transposed and part.matrix is None for part in spec.parts):
        return None
    return chosen(kinds, inputs // spec.local_segments(shard))


def _codes(
    part: Part, sharding: Sharding, folder: StoredWeights, name: str, shard: TensorSlice, kind: CodeType
) -> Iterator[Codes]:
    """This rank's outputs of a part in order, some at a time."""
    ranges = part.source_ranges(*part.output_bounds(sharding, shard))
    inputs = slice(*part.input_bounds(sharding, shard))
    assert part.inputs is not None
    assert isinstance(folder, CodedWeights)
    for outputs in _some_rows(ranges, part.inputs):
        yield folder.codes(name, outputs, inputs, kind, part.matrix)
