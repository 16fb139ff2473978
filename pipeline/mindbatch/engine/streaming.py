"""Streamers: objects with put() and end() as MindFormers and transformers have, fed from the engine."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TextIO

import numpy as np

from mindbatch.engine.output_text import SequenceText, StopMatcher
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer


class Streamer(Protocol):
    """Interface of the TextStreamer and TextIteratorStreamer of MindFormers and of transformers.

    put: the prompt's token ids first, then each new token; with several sequences, a list with one list per
        sequence, empty where a sequence has nothing new.
    end: no more tokens come.
    """

    def put(self, value: Any) -> None: ...
    def end(self) -> None: ...


class TextStreamer:
    """Prints the text of one sequence as it comes; a character is printed once all its bytes are there.

    MindFormers' TextStreamer keeps text back until the next space, and needs mindformers imported.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_prompt: bool = False,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        file: TextIO | None = None,
    ) -> None:
        """`stop`: texts at which the printed output ends; they are not printed."""
        self._tokenizer = tokenizer
        self._skip_prompt = skip_prompt
        self._skip_special_tokens = skip_special_tokens
        self._stop = tuple(stop)
        self._file = file
        self._output: SequenceText | None = None

    def put(self, value: int | Sequence[int]) -> None:
        """The first call brings the prompt's token ids, later ones a new token or several.

        Raises:
            ConfigError: the tokens of several sequences come together.
        """
        ids = [value] if isinstance(value, int) else list(value)
        if any(isinstance(token, list) for token in ids):
            raise _one_output_only(self, len(ids))
        if self._output is not None:
            self._print("".join(self._output.push(token) for token in ids))
            return
        detokenizer = IncrementalDetokenizer(self._tokenizer, ids, self._skip_special_tokens)
        self._output = SequenceText(detokenizer, StopMatcher(self._stop))
        if not self._skip_prompt:
            self._print(self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens))

    def end(self) -> None:
        """Prints what was held back and a newline; the next put begins another sequence."""
        if self._output is not None:
            self._print(self._output.flush() + "\n")
        self._output = None

    def _print(self, text: str) -> None:
        print(text, end="", flush=True, file=self._file or sys.stdout)


class StreamerFeed:
    """Passes the engine's events to a streamer: the tokens of one sequence, or a list for each of several.

    Streamers of transformers get arrays, the prompt's as [1, n]; all others get lists.

    Raises:
        ConfigError: a streamer of transformers, which takes one sequence, would get several.
    """

    def __init__(self, streamer: Streamer, requests: Sequence[Request]) -> None:
        self._streamer = streamer
        self._as_arrays = any(
            base_class.__module__.startswith("transformers.") for base_class in type(streamer).__mro__
        )
        sequences = [(request.key, sample) for request in requests for sample in _samples(request)]
        self._indices = {sequence: index for index, sequence in enumerate(sequences)}
        if self._as_arrays and len(sequences) > 1:
            raise _one_output_only(streamer, len(sequences))
        prompts = [list(request.prompt_token_ids) for request in requests for _ in _samples(request)]
        if prompts:
            several = self._as_arrays or len(prompts) > 1
            self._put(prompts if several else prompts[0])

    def put(self, event: StreamEvent) -> None:
        if len(self._indices) == 1:
            self._put(list(event.token_ids))
            return
        rows: list[list[int]] = [[] for _ in self._indices]
        rows[self._indices[event.key, event.index]] = list(event.token_ids)
        self._put(rows)

    def _put(self, tokens: list[Any]) -> None:
        self._streamer.put(np.array(tokens, np.int64) if self._as_arrays else tokens)


def feed_streamer(
    streamer: Streamer | None, requests: Sequence[Request], items: Iterable[StreamEvent | RequestOutput]
) -> Iterator[RequestOutput]:
    """Yields the results among the items of a run, and passes its events to the streamer."""
    feed = None if streamer is None else StreamerFeed(streamer, requests)
    for item in items:
        if isinstance(item, RequestOutput):
            yield item
        elif feed is not None:
            feed.put(item)


def _one_output_only(streamer: Streamer, outputs: int) -> ConfigError:
    return ConfigError(
        f"streamer: {type(streamer).__name__} takes one output and gets {outputs}; give one prompt and "
        "num_return_sequences=1, or iterate over LLM.stream"
    )


def _samples(request: Request) -> range:
    return range(request.params.num_return_sequences)
