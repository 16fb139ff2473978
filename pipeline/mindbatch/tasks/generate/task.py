"""`mindbatch generate`: prompts in, text out; each result is written once all before it are."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import orjson

from mindbatch.calls import Run
from mindbatch.config.composition import save_config
from mindbatch.config.paths import SAVED_BESIDE
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import CompletionOutput, RequestOutput
from mindbatch.engine.result_json import result_body, result_fields
from mindbatch.generation_progress import GenerationProgress
from mindbatch.io.amounts import today
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.io.screen_text import data_output, say
from mindbatch.io.storage import WholeFile
from mindbatch.llm import LLM
from mindbatch.prompts.chat_options import chat_options
from mindbatch.prompts.prompts import PromptRows
from mindbatch.tasks.generate.live_text import label, stream
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.loading_line import LoadingLine

STREAM_NEEDS_TEXT = (
    "stream=true: the model's folder has no tokenizer, so there is no text to print; leave it out, or give "
    "model.tokenizer=FOLDER"
)


def run(config: GenerateConfig) -> int:
    """Runs the task; returns the exit code: failed when any prompt could not be run."""
    params = DecodingParams(**dataclasses.asdict(config.decoding))
    if config.interactive:
        date = config.date or today()  # one for all that is asked, however long that takes
        from mindbatch.tasks.generate.conversation import converse

        options = chat_options(config.system, config.tools, config.chat_template_kwargs, date)
        with LoadingLine() as line:
            llm = LLM.from_config(config, line)
        return converse(llm, params, chat=config.chat, options=options)
    rows = config.prompt_rows()
    with LoadingLine() as line:
        return _generate(config, params, rows, line)


def _generate(config: GenerateConfig, params: DecodingParams, rows: PromptRows, line: LoadingLine) -> int:
    llm = LLM.from_config(config, line)
    if config.stream and llm.tokenizer is None:
        raise ConfigError(STREAM_NEEDS_TEXT)
    run = llm.submit((row, params) for row in rows.prompts)
    failures = run.refused + [RequestOutput.failed(row.key, row.fault) for row in rows.errors]
    prompts = {row.key: row.content for row in rows.prompts}
    labelled = len(run.requests) + len(failures) > 1 or params.num_return_sequences > 1
    with Destination(config.output.file) as destination:
        if config.stream:
            failures += stream(llm, run, params, destination.file, labelled, line)
        else:
            failures += _write(llm, run, failures, config, destination, labelled, prompts, line)
    say(*(failure.error for failure in sorted(failures, key=lambda output: int(output.key))))
    say(*llm.take_notes())
    if config.output.file is not None:
        save_config(config, Path(f"{config.output.file}{SAVED_BESIDE}"), fixed={"date": rows.date})
    return EXIT_FAILED if failures else EXIT_DONE


def _write(
    llm: LLM,
    run: Run,
    failures: Iterable[RequestOutput],
    config: GenerateConfig,
    destination: Destination,
    labelled: bool,
    prompts: Mapping[str, Any],
    line: LoadingLine,
) -> list[RequestOutput]:
    """Writes each result once all before it are there; returns those of prompts that could not go on."""
    keys = sorted([request.key for request in run.requests] + [failure.key for failure in failures], key=int)
    writer = ResultWriter(
        keys,
        destination.file,
        prompts=prompts,
        as_json=config.output.format == "json",
        labelled=labelled,
        has_text=llm.tokenizer is not None,
        with_prompt=llm.continues_prompts,
    )
    for failure in failures:
        writer.add(failure)
    failed = []
    if len(keys) > 1:
        line.stop()  # there may be a progress bar
    shown = len(keys) > 1 and len(run.requests) > 0
    alone = not destination.file.isatty()
    with GenerationProgress(len(run.requests), shown=shown, alone=alone) as progress:
        for item in line.until_first(run):
            if isinstance(item, RequestOutput):
                writer.add(item)
                failed += [item] if item.error is not None else []
            progress.count(item)
    return failed


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

    keys: all prompts, in order. prompts: by key, as they were given, for JSON.
    labelled: put the prompt's key, and the sample's number, before each text.
    has_text: False shows token ids instead, where there is no tokenizer.
    with_prompt: before each text the prompt that it goes on from.
    """

    def __init__(
        self,
        keys: Sequence[str],
        file: TextIO,
        *,
        prompts: Mapping[str, Any] | None = None,
        as_json: bool,
        labelled: bool,
        has_text: bool = True,
        with_prompt: bool = True,
    ) -> None:
        self._waiting = list(reversed(keys))
        self._file = file
        self._prompts = prompts or {}
        self._as_json = as_json
        self._labelled = labelled
        self._has_text = has_text
        self._with_prompt = with_prompt
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
            content = self._content(result)
            return [orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS).decode()]
        prompt = (result.prompt or "") if self._with_prompt else ""
        texts = [self._text(prompt, output) for output in result.outputs]
        if not self._labelled:
            return texts
        return [f"[{label(result.key, i, len(texts))}] {text}" for i, text in enumerate(texts)]

    def _text(self, prompt: str, output: CompletionOutput) -> str:
        if output.embedding is not None:
            return str(output.embedding)
        return prompt + output.text if self._has_text else str(output.token_ids)

    def _content(self, result: RequestOutput) -> dict[str, Any]:
        """The line that a run writes of the row, with the token ids of prompt and text; or its error."""
        content: dict[str, Any] = {"key": result.key}
        if result.adapter is not None:
            content["adapter"] = result.adapter
        content["prompt"] = self._prompts.get(result.key)
        if result.error is not None:
            return content | {"error": result.error}
        content["prompt_token_ids"] = result.prompt_token_ids
        return content | result_fields(result_body(result), token_ids=True)
