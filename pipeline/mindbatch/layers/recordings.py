"""Recording what a bound model computes in a step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mindbatch.kernels.recording import ROWS, Recording, with_added_norms
from mindbatch.kernels.step_programs import StepRecordings
from mindbatch.layers.decoder import Decoder, EncoderDecoder
from mindbatch.layers.rank import Tokens
from mindbatch.models.architecture import Architecture


def recordings_of(model: Decoder, *, adapted: bool) -> StepRecordings:
    """Records what a model, or a pipeline stage of it, computes. adapted: its tokens may have adapters."""
    tokens = _part if isinstance(model, EncoderDecoder) else _batch(model.arch)

    def of_step(compute: Callable[[Tokens], Any]) -> Recording:
        recording = Recording()
        return _finished(recording, compute(tokens(recording, adapted)))

    step = of_step(model)
    if not model.stage.is_last:
        return StepRecordings(step)
    head = Recording()
    hidden = head.input(step.outputs[0].shape[1:], np.float32)
    slots = head.input((), np.int32) if adapted else None
    _finished(head, model.logits(hidden, Tokens(adapters=slots)))
    if isinstance(model, EncoderDecoder):
        return StepRecordings(step, head, encoder=of_step(model.encode))

    def whole(tokens: Tokens) -> Any:
        hidden = model(tokens)
        return hidden, model.logits(hidden, tokens)

    return StepRecordings(step, head, of_step(whole))


def _batch(arch: Architecture) -> Callable[[Recording, bool], Tokens]:
    """Symbols for the fields of a `Batch`, in their order."""

    def tokens(recording: Recording, adapted: bool) -> Tokens:
        ids = recording.input((), np.int32)
        positions = recording.input(() if arch.num_positions == 1 else (arch.num_positions,), np.int32)
        slots, rows = (recording.input((), np.int32) for _ in range(2))
        tables, lengths = recording.input((ROWS,), np.int32), recording.input((), np.int32)
        adapters = recording.input((), np.int32) if adapted else None
        states = recording.input((), np.int32) if arch.recurrence is not None else None
        return Tokens(ids, positions, slots, rows, tables, lengths, adapters, states=states)

    return tokens


def _part(recording: Recording, adapted: bool) -> Tokens:
    """Symbols for the fields of `PartArrays`, in their order."""
    ids, slots, rows = (recording.input((), np.int32) for _ in range(3))
    tables = recording.input((ROWS,), np.int32)
    lengths, firsts, positions = (recording.input((), np.int32) for _ in range(3))
    adapters = recording.input((), np.int32) if adapted else None
    return Tokens(ids, positions, slots, rows, tables, lengths, adapters, firsts)


def _finished(recording: Recording, result: Any) -> Recording:
    recording.outputs.extend(result if isinstance(result, tuple) else (result,))
    joined = with_added_norms(recording)
    recording.calls[:] = joined.calls
    return recording
