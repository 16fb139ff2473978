"""Holds the state that all routes of the server use: engine, names of models, settings, metrics."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from mindbatch.async_llm import AsyncLLM
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import folder_embeddings
from mindbatch.decoding.token_kinds import drawn_seed
from mindbatch.io.amounts import today
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import PromptError
from mindbatch.io.screen_text import say
from mindbatch.llm import LLM
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.prompts.prompts import token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.result_files import calls_stay_text
from mindbatch.run.result_rows import OutputOptions
from mindbatch.server.batch_rows import count_error, model_error
from mindbatch.server.batches import Batches
from mindbatch.server.metrics import Metrics
from mindbatch.server.requests import ApiError, bad_request
from mindbatch.server.schema import ServeConfig

_MAX_BYTES = 64 << 20


class Conversations:
    """Keeps the messages up to each response, within a number of bytes; drops the oldest first."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._messages: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes, self._max_bytes = 0, max_bytes

    def keep(self, name: str, messages: list[dict[str, Any]]) -> None:
        content = self._messages[name] = orjson.dumps(messages)
        self._num_bytes += len(content)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._messages.popitem(last=False)[1])

    def find(self, name: object) -> list[dict[str, Any]]:
        """Returns the messages up to a response. Raises ApiError if they are not kept."""
        content = self._messages.get(name) if isinstance(name, str) else None
        if content is None:
            message = f"previous_response_id={shown(name)}: not known to this server process"
            raise ApiError(404, message, "response_not_found", "previous_response_id")
        messages: list[dict[str, Any]] = orjson.loads(content)
        return messages


@dataclass
class Service:
    """The state of a running server.

    format: the form of the model's reasoning and tool calls; None if it writes plain text.
    is_draining: the server is ending and accepts no new requests.
    """

    config: ServeConfig
    llm: LLM
    engine: AsyncLLM
    metrics: Metrics
    batches: Batches | None
    format: MessageFormat | None
    is_draining: bool = False
    num_active: int = 0
    started: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        decoding = DecodingParams(**vars(self.config.decoding))
        self._params = decoding
        self.fingerprint = f"fp_{self.started:x}"  # identifies this process in answers
        self.conversations = Conversations()
        self._has_noted_calls = False
        self.model_name = self.config.name
        tokenizer = self.llm.tokenizer
        self.token_bytes = None if tokenizer is None else tokenizer.token_bytes
        self._embeddings = folder_embeddings(Path(self.config.model.checkpoint_name_or_path or ""))
        say(*self._embeddings.errors, *self._embeddings.notes(decoding.pooling))
        self._makers = threading.local()  # a RowMaker caches its checks and is not thread-safe

    @property
    def _maker(self) -> RowMaker:
        """The RowMaker of this thread, so that no request waits for another one's checks."""
        if not hasattr(self._makers, "maker"):
            self._makers.maker = RowMaker(
                DataConfig(format="openai"),
                self._params,
                is_openai=True,
                lora=self.config.lora,
                model_name=self.model_name,
                message_format=self.format,
                embeddings=self._embeddings,
            )
        maker: RowMaker = self._makers.maker
        return maker

    def options(self, row: DataRow) -> OutputOptions:
        return OutputOptions(
            logprobs=self._params.logprobs,
            created=int(time.time()),
            model=row.adapter or self.model_name,
            token_bytes=self.token_bytes,
            message_format=self.format,
        )

    def check_model(self, model: object) -> None:
        """Raises an ApiError unless the name is the model's or an adapter's."""
        if not isinstance(model, str | None):
            raise bad_request(f"model={shown(model)}: must be a text", "model")
        if error := model_error(model, self.config):
            raise ApiError(404, error, "model_not_found", "model")

    async def rows(self, endpoint: str, bodies: Sequence[dict[str, Any]]) -> list[DataRow]:
        """Makes the rows of a request's bodies in a thread.

        Raises:
            ApiError: a body is invalid; the message has all errors.
        """

        def make() -> list[DataRow]:
            rows = [self._row(endpoint, body, str(index)) for index, body in enumerate(bodies)]
            self._note_calls()
            return rows

        return await asyncio.to_thread(make)

    def _note_calls(self) -> None:
        """Prints once, when the first request offers tools, that calls stay text."""
        if self.format is None and self._maker.has_offered_tools and not self._has_noted_calls:
            self._has_noted_calls = True
            say(*calls_stay_text("server", self.config.server.message_format))

    def _row(self, endpoint: str, body: dict[str, Any], key: str) -> DataRow:
        """Makes the row of a request's body, which is checked like a line of a batch."""
        self.check_model(body.get("model"))
        columns = {"custom_id": key, "method": "POST", "url": endpoint, "body": body}
        item = self._maker.make(0, Record("request", 1, columns))
        if isinstance(item, RowFailure):
            raise bad_request(item.reason.replace("body.", ""))
        if error := count_error(item, self.config):
            raise bad_request(error, "n")
        return item

    @property
    def tokenizer(self) -> Tokenizer:
        if self.llm.tokenizer is None:
            raise bad_request("the model has no tokenizer: use token ids")
        return self.llm.tokenizer

    async def tokens(self, row: DataRow, add_special_tokens: bool = True) -> list[int]:
        tokenizer, prompt, max_tokens = self.tokenizer, row.prompt(today()), self.llm.seq_length

        def encode() -> list[int]:
            if prompt.text is not None and not add_special_tokens:
                return tokenizer.encode(prompt.text, add_special_tokens=False, max_tokens=max_tokens)
            return [*token_ids_of(prompt, tokenizer, max_tokens)]

        try:
            return await asyncio.to_thread(encode)
        except PromptError as error:
            raise bad_request(error.lines) from error

    def num_choices(self, row: DataRow) -> int:
        count: int = row.overrides.get("num_return_sequences", self._params.num_return_sequences)
        return count

    def params(self, row: DataRow) -> DecodingParams:
        """Returns the parameters of a request's rows; sampling without a seed gets a random one.

        Checking long parameters is slow.
        """
        params = row.params(self._params)
        if params.do_sample and "seed" not in row.overrides:
            params = replace(params, seed=drawn_seed())
        return params
