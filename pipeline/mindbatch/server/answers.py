"""Assembles an answer of many choices from JSON parts, whose total size is bounded."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from mindbatch.engine.request import Request
from mindbatch.server.requests import JSON, ApiError

MAX_BYTES = 256 << 20
MAX_LOGPROBS = 3_000_000
_CHUNK = 1 << 18


def refuse_many_logprobs(requests: Sequence[Request], seq_length: int) -> None:
    """Raises an ApiError if the outputs of several prompts or choices may exceed MAX_LOGPROBS.

    Each log-probability takes a hundred bytes until it is written.
    """
    if sum(request.params.num_return_sequences for request in requests) < 2:
        return
    count = sum(_max_logprobs(request, seq_length) for request in requests)
    if count > MAX_LOGPROBS:
        raise ApiError(
            400,
            f"the answer may have {count} log-probabilities; at most {MAX_LOGPROBS}; request fewer prompts, "
            "choices or log-probabilities, set max_tokens, or use a stream",
            "answer_too_large",
        )


def _max_logprobs(request: Request, seq_length: int) -> int:
    params, length = request.params, len(request.prompt_token_ids)
    prompt = 0 if params.prompt_logprobs is None else length * (params.prompt_logprobs + 1)
    if params.logprobs is None:
        return prompt
    num_new = params.max_total_tokens(length, seq_length) - length
    return prompt + params.num_return_sequences * num_new * (params.logprobs + 1)


class Choices:
    """Collects the choices of one answer by the position of their row."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._parts: dict[int, list[bytes]] = {}
        self._left, self._max_bytes = max_bytes, max_bytes

    def add(self, position: int, choices: Iterable[Mapping[str, Any]]) -> None:
        """Adds the choices of a row. Raises ApiError if the answer becomes too large."""
        parts = self._parts[position] = []
        for choice in choices:
            content = {name: value for name, value in choice.items() if name != "index"}
            parts.append(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS))
            self._left -= len(parts[-1])
            if self._left < 0:
                raise ApiError(
                    400,
                    f"the answer has more than {self._max_bytes >> 20} MiB; request fewer prompts, choices "
                    "or log-probabilities, or use a stream",
                    "answer_too_large",
                )

    def response(self, head: Mapping[str, Any]) -> Response:
        """Returns the answer: the keys of `head`, and the choices numbered in the order of their rows."""
        chunks = [*_chunks(self._json_parts(orjson.dumps(head, option=orjson.OPT_NON_STR_KEYS)))]
        if len(chunks) == 1:
            return Response(chunks[0], media_type=JSON)
        length = str(sum(map(len, chunks)))
        return StreamingResponse(_stream(chunks), media_type=JSON, headers={"content-length": length})

    def _json_parts(self, head: bytes) -> Iterator[bytes]:
        yield head[:-1] + b',"choices":['
        index = 0
        for position in sorted(self._parts):
            for part in self._parts.pop(position):
                yield (b"," if index else b"") + b'{"index":%d,' % index
                yield part[1:]
                index += 1
        yield b"]}"


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins parts to chunks of at least _CHUNK bytes."""
    chunk = bytearray()
    for part in parts:
        chunk += part
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


async def _stream(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
