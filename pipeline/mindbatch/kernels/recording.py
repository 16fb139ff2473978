"""Records what a model computes in every step, as a list of calls, by calling it with symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

ROWS = -1
"""In a symbol's shape: a size that each step has its own of, as its number of tokens."""

FLOAT = np.dtype(np.float32)

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Symbol:
    """An array of every step. Those that calls write have ROWS as their first size, and no other."""

    recording: Recording
    shape: Shape
    dtype: np.dtype[Any]

    def __add__(self, other: Symbol) -> Symbol:
        return self.recording.call("sum", (self, other), {}, [self.shape])[0]

    def __mul__(self, factor: float) -> Symbol:
        if factor == 1.0:
            return self
        return self.recording.call("scaled", (self,), {"factor": factor}, [self.shape])[0]


@dataclass(frozen=True)
class RecordedCall:
    """An operation, what it reads, and what it writes.

    inputs: symbols; parameters and caches as the kernels keep them; None for a vector that there is not.
    layer: the name of the layer that it is in, "" of the ends of a model.
    """

    operation: str
    inputs: tuple[Any, ...]
    outputs: tuple[Symbol, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    layer: str = ""


@dataclass(eq=False)
class Recording:
    """Calls in their order.

    inputs: what each step brings. outputs: what the recording gives.
    layer: the layer of calls to come, see `RecordedCall`.
    """

    inputs: list[Symbol] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    outputs: list[Symbol] = field(default_factory=list)
    layer: str = ""

    def input(self, columns: Sequence[int], dtype: npt.DTypeLike) -> Symbol:
        """An array [rows, *columns] that each step brings."""
        symbol = Symbol(self, (ROWS, *columns), np.dtype(dtype))
        self.inputs.append(symbol)
        return symbol

    def call(
        self,
        operation: str,
        inputs: Sequence[Any],
        settings: Mapping[str, Any],
        shapes: Sequence[Shape],
        dtype: np.dtype[Any] = FLOAT,
    ) -> tuple[Symbol, ...]:
        """Adds a call; what it writes, of these shapes."""
        outputs = tuple(Symbol(self, shape, dtype) for shape in shapes)
        self.calls.append(RecordedCall(operation, tuple(inputs), outputs, settings, self.layer))
        return outputs


class Operation:
    """A function of a step's arrays, declared once: by what it gives in NumPy.

    Called with arrays it is that function; called with symbols it is recorded, and what runs the recording
    has functions of the same name: NumPy's, those of the C++ library, or operators of MindSpore.
    Its settings are the function's keyword-only parameters: see `mindbatch.kernels.settings`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        widths: Callable[..., Any],
        dtype: np.dtype[Any],
    ) -> None:
        self.name, self.function, self.dtype = function.__name__, function, dtype
        self._widths = widths
        self.__doc__ = function.__doc__

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        recording = next((argument.recording for argument in inputs if isinstance(argument, Symbol)), None)
        if recording is None:
            return self.function(*inputs, **settings)
        widths = self.widths([getattr(argument, "shape", ()) for argument in inputs], settings)
        shapes = [(ROWS,) if width is None else (ROWS, width) for width in widths]
        outputs = recording.call(self.name, inputs, settings, shapes, self.dtype)
        return outputs if len(outputs) > 1 else next(iter(outputs), None)

    @property
    def outputs(self) -> int:
        """How many arrays it gives."""
        result = get_type_hints(self.function)["return"]
        return len(get_args(result)) if get_origin(result) is tuple else 1

    def widths(self, shapes: Sequence[Any], settings: Mapping[str, Any]) -> tuple[int | None, ...]:
        """Columns of each output, for inputs of such shapes; None of one without."""
        widths = self._widths(*shapes, **settings)
        return widths if isinstance(widths, tuple) else (widths,)


OPERATIONS: dict[str, Operation] = {}
"""All that are declared, by name."""


def operation(
    widths: Callable[..., Any] | None = None, dtype: npt.DTypeLike = FLOAT
) -> Callable[[Callable[..., Any]], Operation]:
    """Declares the operation that a NumPy function computes.

    widths: from the inputs' shapes and the settings to the columns of what it gives, a tuple where that is
        not one array; None for those of the first input. dtype: of what it gives.
    """

    def declare(function: Callable[..., Any]) -> Operation:
        operation = Operation(function, widths or _as_first, np.dtype(dtype))
        OPERATIONS[operation.name] = operation
        return operation

    return declare


def _as_first(x: Shape, *others: Shape, **settings: Any) -> tuple[int, ...]:
    return tuple(x[1:])


def with_added_norms(recording: Recording) -> Recording:
    """The recording, with one call for each sum and the first norm of it."""
    sums = {call.outputs[0] for call in recording.calls if call.operation == "sum"}
    norms: dict[Symbol, RecordedCall] = {}
    for call in recording.calls:
        if call.operation == "norm" and call.inputs[0] in sums:
            norms.setdefault(call.inputs[0], call)
    joined = {id(call) for call in norms.values()}
    calls = []
    for call in recording.calls:
        norm = norms.get(call.outputs[0]) if call.operation == "sum" else None
        if norm is not None:
            outputs = (norm.outputs[0], call.outputs[0])
            calls.append(
                replace(norm, operation="add_norm", inputs=(*call.inputs, *norm.inputs[1:]), outputs=outputs)
            )
        elif id(call) not in joined:
            calls.append(call)
    return replace(recording, calls=calls)
