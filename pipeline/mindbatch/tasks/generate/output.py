"""Writing finished results in the order of the prompts, as text or JSON lines, to the screen or a file."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

import orjson

from mindbatch.engine.request import RequestOutput
from mindbatch.screen_text import data_output
from mindbatch.storage import WholeFile


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
