"""What generating shows: results in the order of the prompts, whole or while they grow, and progress."""

from __future__ import annotations

import dataclasses
import io
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

import orjson
from rich.console import Console

from mindbatch.engine.request import Request, RequestOutput, StreamEvent
from mindbatch.run.moving_bar import MovingBar
from mindbatch.screen_text import data_output, show
from mindbatch.storage import WholeFile
from mindbatch.streaming import Streamer

Place = tuple[str, int]  # key of the prompt, number of the sample


class Destination:
    """Standard output, or a file that appears whole or not at all. Raises StorageError."""

    def __init__(self, path: str | None) -> None:
        self._whole = None if path is None else WholeFile(Path(path))
        self.file: TextIO = data_output()

    def __enter__(self) -> Destination:
        if self._whole is not None:
            self.file = io.TextIOWrapper(self._whole.__enter__(), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._whole is None:
            return
        try:
            if error is None:
                self.file.flush()
            self._whole.__exit__(kind, error, trace)
        finally:
            self._whole.close()


class ResultWriter:
    """Takes results as they finish and writes each once all before it are written.

    keys: all prompts, in order. labelled: put the prompt's key, and the sample's number, before each text.
    has_text: False shows token ids instead, where there is no tokenizer.
    """

    def __init__(
        self, keys: Sequence[str], file: TextIO, *, as_json: bool, labelled: bool, has_text: bool = True
    ) -> None:
        self._waiting = list(reversed(keys))
        self._file = file
        self._as_json = as_json
        self._labelled = labelled
        self._has_text = has_text
        self._done: dict[str, RequestOutput] = {}

    def add(self, result: RequestOutput) -> None:
        """Takes one result."""
        self._done[result.key] = result
        while self._waiting and self._waiting[-1] in self._done:
            ready = self._done.pop(self._waiting.pop())
            for line in self._lines(ready):
                print(line, file=self._file)
            self._file.flush()

    def _lines(self, result: RequestOutput) -> list[str]:
        if self._as_json:
            content = dataclasses.asdict(result)
            del content["num_cached_tokens"]  # of the batch that it happened to run in, not of the result
            return [orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS).decode()]
        prompt = result.prompt or ""
        texts = [
            prompt + output.text if self._has_text else str(output.token_ids) for output in result.outputs
        ]
        if not self._labelled:
            return texts
        return [f"[{label(result.key, i, len(texts))}] {text}" for i, text in enumerate(texts)]


def label(key: str, index: int, samples: int) -> str:
    """The name of one output: the prompt's key, with the sample's number where there are several."""
    return key if samples == 1 else f"{key}.{index}"


class LiveText:
    """Feeds a streamer per output; the tokens of outputs whose turn has not come are kept.

    labelled: put the prompt's key, and the sample's number, before each text.
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
    ) -> None:
        self._turns = [
            (request, sample) for request in requests for sample in range(request.params.num_return_sequences)
        ]
        self._turns.reverse()
        self._labelled = labelled
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
            print(request.prompt or "", end="", flush=True, file=self._file)
            self._streamer = self._make_streamer(request)
            self._streamer.put(list(request.prompt_token_ids))
        for event in self._kept.pop((request.key, sample), []):
            self._streamer.put(list(event.token_ids))
            if event.finish_reason is not None:
                self._streamer.end()
                return True
        return False


class Progress:
    """Counts prompts and tokens; silent unless `shown`.

    The moving line needs a terminal to itself: `output` is where the results go meanwhile.
    """

    def __init__(self, prompts: int, shown: bool, output: TextIO) -> None:
        self._shown = shown
        self._tokens = 0
        self._done = 0
        self._started = time.perf_counter()
        self._total = prompts
        alone = sys.stderr.isatty() and not output.isatty()
        self._bar = MovingBar("generating", Console(stderr=True), disable=not (shown and alone))
        self._show()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._shown and error is None:
            counts = f"{self._done} prompts, {self._tokens} tokens"
            show(f"{counts} in {self._seconds:.1f} s ({self._rate:.0f} tokens/s)", sys.stderr)

    def count(self, item: StreamEvent | RequestOutput) -> None:
        """Takes what a step brought."""
        if isinstance(item, RequestOutput):
            self._done += 1
        else:
            self._tokens += len(item.token_ids)
        self._show()

    def _show(self) -> None:
        self._bar.set(self._done, self._total, f"{self._rate:.0f} tokens/s")

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _rate(self) -> float:
        return self._tokens / max(self._seconds, 1e-9)
