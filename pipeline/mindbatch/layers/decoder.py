"""The base of all models' trees, whole or one pipeline stage; and recording what they compute in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mindbatch.architecture.architecture import Architecture
from mindbatch.kernels.operations.dense import capped, receive_hidden, send_hidden
from mindbatch.kernels.recording import ROWS, Recording, Symbol, with_added_norms
from mindbatch.layers.linear import Head, TokenEmbedding
from mindbatch.layers.rank import Module, Rank, Tensor, Tokens

if TYPE_CHECKING:  # programs, which a model that is only described does not need
    from mindbatch.kernels.step_programs import StepRecordings


class Decoder(Module):
    """Base of the types' models; T tokens, H hidden_size, V vocab_size.

    A type sets the attributes, and overrides `embed` and `finish` for what precedes and follows its layers.
    """

    embedding: TokenEmbedding
    norm: Module
    head: Head
    layers: Sequence[Module]

    def __init__(self, a: Architecture) -> None:
        self.arch = a

    def bind(self, name: str, rank: Rank) -> None:
        """Binds the layers of the rank's stage, and on the first and last stage the ends of the model."""
        self.stage, self.tensor_rank = rank.stage, rank.shard.rank
        for path, child in self.children(name):
            if path.startswith("layers."):
                is_needed = int(path.removeprefix("layers.")) in self.stage.layers
            else:
                is_needed = self.stage.is_last if path.startswith(("norm", "head")) else self.stage.is_first
            if is_needed:
                child.bind(path, rank)

    def embed(self, tokens: Tokens) -> Tensor:
        return self.embedding(tokens)

    def finish(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        """Makes the input of the head from the output of the last layer."""
        return self.norm(x_TH)

    def forward(self, tokens: Tokens) -> Tensor:
        """Hidden states as the head takes them; of a stage before the last what it sends on."""
        if self.stage.is_first:
            x_TH = self.embed(tokens)
        else:
            stage, width = self.stage.index, self.arch.hidden_size
            x_TH = receive_hidden(tokens.ids, stage=stage, tensor_rank=self.tensor_rank, width=width)
        for layer in self.stage.layers:
            tokens.enter_layer(f"layers.{layer}")
            x_TH = self.layers[layer](x_TH, tokens)
        tokens.enter_layer("")
        if self.stage.is_last:
            return self.finish(x_TH, tokens)
        return send_hidden(x_TH, stage=self.stage.index, tensor_rank=self.tensor_rank)

    def logits(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """[T, V] of hidden states."""
        raw_logits = self.head(hidden, tokens)
        if self.arch.logits_cap:
            return self.head.gathered(capped(raw_logits, cap=self.arch.logits_cap))
        return self.head.gathered(raw_logits * self.arch.logits_factor)


class EncoderDecoder(Decoder):
    """A decoder with an encoder before it. Such models are not divided into pipeline stages."""

    def encode(self, tokens: Tokens) -> Tensor:
        """Computes the encoder's hidden states [T, H] and writes keys and values of them to the caches."""
        raise NotImplementedError


def recordings_of(model: Decoder, *, adapted: bool) -> StepRecordings:
    """Records what a model, or a pipeline stage of it, computes. adapted: tokens may have adapters."""
    from mindbatch.kernels.step_programs import StepRecordings

    def of_step(compute: Callable[[Tokens], Tensor | tuple[Tensor, Tensor]]) -> Recording:
        recording = Recording()
        return _finished(recording, compute(_batch(model, recording, adapted)))

    step = of_step(model)
    if not model.stage.is_last:
        return StepRecordings(step)
    head = Recording()
    hidden = head.input(step.outputs[0].shape[1:], np.float32)
    slots = head.input((), np.int32) if adapted else None
    _finished(head, model.logits(hidden, Tokens(adapters=slots)))
    if isinstance(model, EncoderDecoder):
        return StepRecordings(step, head, encoder=of_step(model.encode))

    def whole(tokens: Tokens) -> tuple[Tensor, Tensor]:
        hidden = model(tokens)
        return hidden, model.logits(hidden, tokens)

    return StepRecordings(step, head, of_step(whole))


def _batch(model: Decoder, recording: Recording, adapted: bool) -> Tokens:
    """Makes symbols for the arrays of a `Batch` that the model's steps have, in their order."""
    arch = model.arch

    def symbol(*columns: int) -> Symbol:
        return recording.input(columns, np.int32)

    ids, positions = symbol(), symbol() if arch.num_positions == 1 else symbol(arch.num_positions)
    slots, rows, tables, lengths = symbol(), symbol(), symbol(ROWS), symbol()
    first_positions = symbol() if isinstance(model, EncoderDecoder) else None
    adapters = symbol() if adapted else None
    states = symbol() if arch.recurrence is not None else None
    return Tokens(ids, positions, slots, rows, tables, lengths, adapters, first_positions, states)


def _finished(recording: Recording, result: Tensor | tuple[Tensor, Tensor]) -> Recording:
    recording.outputs.extend(result if isinstance(result, tuple) else (result,))
    joined = with_added_norms(recording)
    recording.calls[:] = joined.calls
    return recording
