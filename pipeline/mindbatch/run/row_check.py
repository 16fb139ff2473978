"""Checks rows and counts their tokens as the engine will judge them; none is run."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.io.errors import PromptError
from mindbatch.prompts.prompts import token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer


class RowTokens(NamedTuple):
    """The tokens of a row: of its prompt, of each output at most, and the number of its outputs."""

    prompt: int
    output: int
    samples: int

    @property
    def sequence(self) -> int:
        """Prompt and output together, at most."""
        return self.prompt + self.output


class RowCheck:
    """Puts rows to an engine and takes them back.

    engine: has nothing else to do.
    params: the run's; those of a row go before them. date: see `Prompt`.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer | None, params: DecodingParams, date: str | None = None
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._params = params
        self._date = date

    def count(self, row: DataRow) -> RowTokens | RowFailure:
        """The row's tokens, or why it cannot be run."""
        params = row.params(self._params)
        request = Request(row.key, (), params, adapter=row.adapter)
        try:
            most_tokens = self._engine.settings.seq_length
            token_ids = tuple(token_ids_of(row.prompt(self._date), self._tokenizer, most_tokens))
            self._engine.add(replace(request, prompt_token_ids=token_ids))
        except PromptError as error:
            return RowFailure(row.key, row.source, row.line, "prompt", request.reason(error))
        self._engine.abort()
        most = params.max_total_tokens(len(token_ids), self._engine.settings.seq_length)
        return RowTokens(len(token_ids), most - len(token_ids), params.num_return_sequences)
