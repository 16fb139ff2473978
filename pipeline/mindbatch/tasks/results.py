"""Writing finished results in the order of the prompts, as text or JSON lines, to the screen or a file."""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

import orjson

from mindbatch.engine.request import RequestOutput


class Destination:
    """Standard output, or a file that appears whole or not at all: written beside, synced and renamed."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._beside: Path | None = None
        self.file: TextIO = sys.stdout

    def __enter__(self) -> Destination:
        if self._path is not None:
            self._beside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
            try:
                self.file = self._beside.open("x", encoding="utf-8")
            except BaseException:  # an interrupt, too: it may come when the file is there already
                self._beside.unlink(missing_ok=True)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None or self._beside is None:
            return
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            if error is None:
                self._beside.replace(self._path)
        finally:
            self._beside.unlink(missing_ok=True)


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
            return [orjson.dumps(dataclasses.asdict(result), option=orjson.OPT_NON_STR_KEYS).decode()]
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
