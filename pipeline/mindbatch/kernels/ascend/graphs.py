"""Cells of a step on Ascend: a recording as the source of a `construct`, and the outermost cells.

Those have the names that operators look inputs up by, the masks, and are float32 outside.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.ascend.attention import HIDDEN
from mindbatch.kernels.ascend.step import CHUNKS, PROMPTS, AscendBatch
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, outermost_cell, written_cell
from mindbatch.kernels.recording import RecordedCall, Recording, Symbol

TRIANGLE = 128
"""Side of the causal mask that FlashAttentionScore takes for a sequence of any length in layout TH."""


class StepMask(nn.Cell):
    """(positions [T], block_tables [B, W]) -> what attention adds to scores.

    A row for each token where a sequence has several, else the same for every step.
    """

    def __init__(self, graph: str, dtype: Any, block_size: int) -> None:
        super().__init__(auto_prefix=False)
        self.dtype = dtype
        self.block_size = block_size
        self.is_by_row = graph == CHUNKS
        self.fixed = Tensor(_fixed_mask(graph, dtype)).astype(dtype)

    def construct(self, positions: Tensor, block_tables: Tensor) -> Tensor:
        if not self.is_by_row:
            return self.fixed
        columns = ops.arange(block_tables.shape[1] * self.block_size).expand_dims(0)
        return ops.cast(columns > positions.expand_dims(1), self.dtype) * HIDDEN


class InFloat32(nn.Cell):
    """A tensor, or each of two."""

    def construct(self, output: Any) -> Any:
        if isinstance(output, tuple):
            return ops.cast(output[0], mstype.float32), ops.cast(output[1], mstype.float32)
        return ops.cast(output, mstype.float32)


def step_graph(cell: nn.Cell, graph: str, dtype: Any, block_size: int, *, adapted: bool) -> nn.Cell:
    """Takes the fields of `AscendBatch`, over a cell that takes (ids, positions, step, adapters).

    Attention gets of the step (slots, block_tables, lengths, queries, mask, positions).
    The operators find the inputs batch_valid_length and q_seq_lens by these names. They are given to every
    graph, for an input of another graph that ran before would be found otherwise.
    """
    mask = "mask = self.mask(positions, block_tables)"
    step = "step = (slots, block_tables, batch_valid_length, q_seq_lens, mask, positions)"
    result = "return self.in_float32(self.cell(ids, positions, step, adapters))"
    parts = {
        "cell": cell,
        "mask": StepMask(graph, dtype, block_size),
        "in_float32": InFloat32(auto_prefix=False),
    }
    return outermost_cell(AscendBatch._fields, mask, step, result, adapted=adapted, **parts)


def head_graph(head: nn.Cell, dtype: Any, *, adapted: bool) -> nn.Cell:
    """float32 hidden states to float32 logits over a head of another type."""
    result = "return ops.cast(self.head(ops.cast(hidden, self.dtype), adapters), mstype.float32)"
    return outermost_cell(["hidden"], result, adapted=adapted, head=head, dtype=dtype)


def _fixed_mask(graph: str, dtype: Any) -> Any:
    """[128, 128] for FlashAttentionScore, which multiplies it by HIDDEN itself in bfloat16; else [1, 1]."""
    if graph != PROMPTS:
        return np.zeros((1, 1), np.float32)
    hidden = 1.0 if dtype == mstype.bfloat16 else HIDDEN
    return np.triu(np.full((TRIANGLE, TRIANGLE), hidden, np.float32), 1)


DECODER = ("ids", "positions", "step[0]", "step[1]", "step[2]", "step[3]", "adapters[0]")
"""The inputs of a step's recording as the outermost cell hands them on; attention takes all of `step`."""
OF_PART = ("ids", "positions", *(f"step[{index}]" for index in range(5)), "adapters[0]")
"""The same of an encoder or its decoder."""
HEAD = ("hidden", "adapters[0]")

LAYER_DOT = "__"
"""Stands in names of cells for the dot in those of layers."""
_TAKE_STEPS = ("attention", "distance_attention")
_EXPRESSIONS = {
    "biased": "{0} + {1}",
    "columns": "mint.narrow({0}, -1, {first}, {count})",
    "ids_from": "{0} - {first}",
    "joined": "ops.cat(({0}, {1}), 1)",
    "scaled": "{0} * {factor!r}",
    "sum": "{0} + {1}",
    "table_rows": "ops.gather({1}, {0}, 0)",
}
"""Operations that are one operator of MindSpore, by their inputs and settings."""


def recorded_cell(recording: Recording, kernels: MindSporeKernels, inputs: Sequence[str]) -> nn.Cell:
    """inputs: expressions for those of the recording, of the arguments of DECODER or of HEAD."""
    arguments = ["hidden", "adapters"] if inputs is HEAD else ["ids", "positions", "step", "adapters"]
    written = _Writer(kernels, dict(zip(recording.inputs, inputs, strict=False)))
    lines = [written.line(call) for call in recording.calls]
    results = ", ".join(written.expression(symbol) for symbol in recording.outputs)
    return written_cell(arguments, [*lines, f"return {results}"], **written.attributes)


class _Writer:
    """Lines of calls, and the cells and parameters that they name."""

    def __init__(self, kernels: MindSporeKernels, names: Mapping[Symbol, str]) -> None:
        self._kernels, self._names = kernels, dict(names)
        self._captured: dict[int, str] = {}
        self.attributes: dict[str, Any] = {"absent": kernels.absent()}

    def expression(self, argument: Any) -> str:
        if argument is None:
            return "self.absent"
        if isinstance(argument, Symbol):
            return self._names[argument]
        if id(argument) not in self._captured:
            name = f"captured_{len(self._captured)}"
            self._captured[id(argument)], self.attributes[name] = name, argument
        return f"self.{self._captured[id(argument)]}"

    def line(self, call: RecordedCall) -> str:
        if call.operation in _EXPRESSIONS:
            inputs = [*map(self.expression, call.inputs)]
            [symbol] = call.outputs
            self._names[symbol] = f"x_{len(self._names)}"
            return f"{self._names[symbol]} = {_EXPRESSIONS[call.operation].format(*inputs, **call.settings)}"
        where = f"{call.layer}.{call.operation}" if call.layer else call.operation
        cell = f"{where.replace('.', LAYER_DOT)}{LAYER_DOT}n{len(self.attributes)}"
        self.attributes[cell] = self._kernels.cell(call.operation, **call.settings)
        if call.operation in _TAKE_STEPS:
            qkv, keys, values, *others = call.inputs
            weights = [weight for weight in others if not isinstance(weight, Symbol)]
            arguments = [*map(self.expression, (qkv, keys, values)), "*step", *map(self.expression, weights)]
        else:
            arguments = [*map(self.expression, call.inputs)]
        for symbol in call.outputs:
            self._names[symbol] = f"x_{len(self._names)}"
        # What writes the cache gives what it is written before.
        outputs = [self._names[symbol] for symbol in call.outputs] or arguments[:1]
        return f"{', '.join(outputs)} = self.{cell}({', '.join(arguments)})"
