"""`stream=true`: outputs shown while they grow, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TextIO

from mindbatch.calls import Run
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.llm import LLM
from mindbatch.streaming import Streamer, TextStreamer
from mindbatch.tasks.loading_line import LoadingLine

Place = tuple[str, int]  # key of the prompt, number of the sample


def stream(
    llm: LLM, run: Run, params: DecodingParams, file: TextIO, labelled: bool, line: LoadingLine
) -> list[RequestOutput]:
    """Prints the outputs one after the other, the first one token by token while all of them run.

    Returns the results of prompts that could not go on.
    """

    def streamer(request: Request) -> TextStreamer:
        return TextStreamer(
            llm.required_tokenizer,
            skip_prompt=True,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            file=file,
        )

    live = LiveText(run.requests, streamer, file, labelled=labelled, with_prompt=llm.continues_prompts)
    failures = []
    for item in line.until_first(run):
        if isinstance(item, RequestOutput):
            live.finish(item)
            failures += [item] if item.error is not None else []
        else:
            live.put(item)
    return failures


class LiveText:
    """Feeds a streamer per output; the tokens of outputs whose turn has not come are kept.

    labelled: put the prompt's key, and the sample's number, before each text.
    with_prompt: before each text the prompt that it goes on from.
    make_streamer: gives a fresh streamer for one output of a request, which must not print the prompt: it is
        printed here, as it was given and not as its tokens would spell it.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        make_streamer: Callable[[Request], Streamer],
        file: TextIO,
        *,
        labelled: bool,
        with_prompt: bool = True,
    ) -> None:
        self._turns = [
            (request, sample) for request in requests for sample in range(request.params.num_return_sequences)
        ]
        self._turns.reverse()
        self._labelled = labelled
        self._with_prompt = with_prompt
        self._make_streamer = make_streamer
        self._file = file
        self._kept: dict[Place, list[StreamEvent]] = defaultdict(list)
        self._absent: set[Place] = set()
        self._streamer: Streamer | None = None

    def put(self, event: StreamEvent) -> None:
        """Takes one event; prints it, and what waited for it to end, if its output has the turn."""
        self._kept[event.key, event.index].append(event)
        self._print_turns()

    def finish(self, result: RequestOutput) -> None:
        """Ends a request; nobody waits for outputs that were asked for and that a search did not find."""
        for request, sample in self._turns:
            if request.key == result.key and sample >= len(result.outputs):
                self._absent.add((request.key, sample))
        self._print_turns()

    def _print_turns(self) -> None:
        while self._turns and self._print_kept():
            self._turns.pop()
            self._streamer = None

    def _print_kept(self) -> bool:
        """Prints what there is of the output that has the turn; whether it has ended."""
        request, sample = self._turns[-1]
        if (request.key, sample) in self._absent:
            if self._streamer is not None:
                self._streamer.end()
            return True
        if self._streamer is None:
            if self._labelled:
                name = label(request.key, sample, request.params.num_return_sequences)
                print(f"[{name}] ", end="", file=self._file)
            if self._with_prompt:
                print(request.prompt or "", end="", flush=True, file=self._file)
            self._streamer = self._make_streamer(request)
            self._streamer.put(list(request.prompt_token_ids))
        for event in self._kept.pop((request.key, sample), []):
            self._streamer.put(list(event.token_ids))
            if event.finish_reason is not None:
                self._streamer.end()
                return True
        return False


def label(key: str, index: int, samples: int) -> str:
    """The name of one output: the prompt's key, with the sample's number where there are several."""
    return key if samples == 1 else f"{key}.{index}"
