"""Answers that are sent as a whole: JSON in parts, which are written as they come, and bounded together."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from mindbatch.engine.request import Request
from mindbatch.server.requests import JSON, ApiError

MOST_BYTES = 256 << 20
MOST_LOGPROBS = 3_000_000
_CHUNK = 1 << 18


def refuse_many_logprobs(requests: Sequence[Request], seq_length: int) -> None:
    """Raises an ApiError where the outputs of several prompts or choices may have more log-probabilities than
    one answer holds: each takes a hundred bytes until it is written."""
    if sum(request.params.num_return_sequences for request in requests) < 2:
        return
    count = sum(_most_logprobs(request, seq_length) for request in requests)
    if count > MOST_LOGPROBS:
        raise ApiError(
            400,
            f"prompts, choices, tokens and log-probabilities may come to {count} log-probabilities; at most "
            f"{MOST_LOGPROBS} in one answer; ask for fewer, give max_tokens, or take a stream",
            "answer_too_large",
        )


def _most_logprobs(request: Request, seq_length: int) -> int:
    params, length = request.params, len(request.prompt_token_ids)
    prompt = 0 if params.prompt_logprobs is None else length * (params.prompt_logprobs + 1)
    if params.logprobs is None:
        return prompt
    num_new = params.max_total_tokens(length, seq_length) - length
    return prompt + params.num_return_sequences * num_new * (params.logprobs + 1)


class Choices:
    """The choices of one answer, by the position of the row that they are of."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._parts: dict[int, list[bytes]] = {}
        self._left, self._most_bytes = most_bytes, most_bytes

    def add(self, place: int, choices: Iterable[Mapping[str, Any]]) -> None:
        """Takes the choices of a row; an ApiError where the answer becomes too large to be held."""
        parts = self._parts[place] = []
        for choice in choices:
            content = {name: value for name, value in choice.items() if name != "index"}
            parts.append(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS))
            self._left -= len(parts[-1])
            if self._left < 0:
                raise ApiError(
                    400,
                    f"the answer has more than {self._most_bytes >> 20} MiB, the most that is sent at once; "
                    "ask for fewer prompts, choices or log-probabilities, or for a stream",
                    "answer_too_large",
                )

    def response(self, head: Mapping[str, Any]) -> Response:
        """The answer: the other keys, and the choices in the order of their rows, numbered."""
        chunks = [*_chunks(self._pieces(orjson.dumps(head, option=orjson.OPT_NON_STR_KEYS)))]
        if len(chunks) == 1:
            return Response(chunks[0], media_type=JSON)
        length = str(sum(map(len, chunks)))
        return StreamingResponse(_stream(chunks), media_type=JSON, headers={"content-length": length})

    def _pieces(self, head: bytes) -> Iterator[bytes]:
        yield head[:-1] + b',"choices":['
        index = 0
        for place in sorted(self._parts):
            for part in self._parts.pop(place):
                yield (b"," if index else b"") + b'{"index":%d,' % index
                yield part[1:]
                index += 1
        yield b"]}"


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Joins pieces, so that few are sent."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


async def _stream(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
