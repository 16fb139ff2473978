"""Running steps through the compiled model: the only place that builds tensors for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from mindspore import Tensor

from mindbatch.engine.batch import buckets_up_to, flatten, pad_to_bucket
from mindbatch.engine.scheduler import Step
from mindbatch.engine.settings import EngineSettings
from mindbatch.models.compiled import CompiledCell, OnCompile
from mindbatch.models.runnable import RunnableModel

FloatArray = npt.NDArray[np.float32]


class ModelOutput:
    """Hidden states of a step; logits came along or are computed for the tokens that are asked for."""

    def __init__(self, hidden: FloatArray, runner: ModelRunner, logits: FloatArray | None = None) -> None:
        self._hidden = hidden
        self._runner = runner
        self._logits = logits

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        """See `StepOutput.logits`."""
        if self._logits is None:
            return self._runner.project(self._hidden[np.asarray(tokens, np.intp)])
        if list(tokens) == list(range(len(tokens))):
            return self._logits[: len(tokens)]
        return self._logits[np.asarray(tokens, np.intp)]

    def hidden(self, tokens: Sequence[int]) -> FloatArray:
        """See `StepOutput.hidden`."""
        return self._hidden[np.asarray(tokens, np.intp)]


class ModelRunner:
    """One rank's model with its paged cache.

    A graph is compiled for each bucket of tokens when it is first needed: one with the head for steps that
    only decode, one without for steps with prompts, and one of the head alone for each bucket of rows.
    """

    def __init__(
        self, model: RunnableModel, settings: EngineSettings, on_compile: OnCompile = lambda rows: None
    ) -> None:
        """`on_compile`: see `CompiledCell`."""
        self.vocab_size = model.vocab_size
        self.cache = model.cache
        self._model = model
        self._settings = settings
        self._buckets = buckets_up_to(settings.max_batched_tokens, few=model.few_graphs)
        self._network = CompiledCell(model.network, on_compile)
        self._decoder = CompiledCell(model.decoder, on_compile)
        self._head = CompiledCell(model.head, on_compile)

    def run(self, step: Step) -> ModelOutput:
        """Copies the step's blocks, computes its tokens and writes them to the cache."""
        self.cache.copy_blocks(step.copies)
        size = pad_to_bucket(step.num_tokens, self._buckets)
        batch = flatten(step, size, self._settings.block_size, self._table_width(step))
        inputs = map(Tensor, batch)
        if step.num_tokens == sum(tokens.num_logits for tokens in step.scheduled):
            hidden, logits = self._network(*inputs)
            return ModelOutput(_floats(hidden), self, _floats(logits))
        return ModelOutput(_floats(self._decoder(*inputs)), self)

    def project(self, hidden: FloatArray) -> FloatArray:
        """Logits [S, vocabulary] of hidden states [S, hidden]."""
        largest, shards = self._buckets[-1], []
        for first in range(0, len(hidden), largest):
            some = hidden[first : first + largest]
            size = pad_to_bucket(len(some), self._buckets)
            padded = np.zeros((size, hidden.shape[1]), self._model.dtype)
            padded[: len(some)] = some
            shards.append(_floats(self._head(Tensor(padded)))[: len(some)])
        return shards[0] if len(shards) == 1 else np.concatenate(shards)

    def _table_width(self, step: Step) -> int:
        needed = max(len(tokens.sequence.block_table) for tokens in step.scheduled)
        return self._model.table_width(needed, self._settings.blocks_per_sequence)


def _floats(tensor: Tensor) -> FloatArray:
    """float32, whatever the kernels compute in: decoding knows no other."""
    return tensor.asnumpy().astype(np.float32, copy=False)
