"""`mindbatch generate`: generates text for a few prompts, and writes or streams it in their order."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import orjson

from mindbatch.config.paths import SAVED_BESIDE
from mindbatch.config.saved import save_config
from mindbatch.decoding import DecodingParams
from mindbatch.engine.progress import with_progress
from mindbatch.engine.request import (
    CompletionOutput,
    Request,
    RequestOutput,
    StreamEvent,
    result_body,
    result_fields,
)
from mindbatch.io.amounts import today
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.io.moving_bar import LoadingLine
from mindbatch.io.screen_text import data_output, say
from mindbatch.io.storage import WholeFile
from mindbatch.llm import LLM
from mindbatch.prompts.messages import chat_options
from mindbatch.prompts.prompts import PromptRows
from mindbatch.tasks.generate.schema import GenerateConfig

STREAM_NEEDS_TEXT = (
    "stream=true: the model's folder has no tokenizer, so there is no text to print; leave it out, or give "
    "model.tokenizer=FOLDER"
)


def run(config: GenerateConfig) -> int:
    """Runs the task; returns the exit code: failed when any prompt could not be run."""
    params = DecodingParams(**asdict(config.decoding))
    if config.interactive:
        date = config.date or today()  # one for the whole conversation, however long it takes
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
    if config.chat or config.messages is not None:
        llm.refuse_chats("chat=true" if config.chat else "messages")
    run = llm.submit((row, params) for row in rows.prompts)
    failures = run.refused + [RequestOutput.failed(row.key, row.error) for row in rows.errors]
    keys = sorted([request.key for request in run.requests] + [failure.key for failure in failures], key=int)
    labelled = len(keys) > 1 or params.num_return_sequences > 1
    with destination(config.output.file) as file:
        writer: LiveText | ResultWriter
        if config.stream:
            writer = LiveText(run.requests, file, labelled=labelled, with_prompt=llm.continues_prompts)
        else:
            writer = ResultWriter(
                keys,
                file,
                prompts={row.key: row.content for row in rows.prompts},
                as_json=config.output.format == "json",
                labelled=labelled,
                has_text=llm.tokenizer is not None,
                with_prompt=llm.continues_prompts,
            )
            for failure in failures:
                writer.add(failure)
            if len(keys) > 1:
                line.close()  # there may be a progress bar
        shown = not config.stream and len(keys) > 1 and len(run.requests) > 0
        items = with_progress(line.until_first(run), len(run.requests), shown=shown, alone=not file.isatty())
        with closing(items):
            failures += _written(items, writer)
    say(*(failure.error for failure in sorted(failures, key=lambda output: int(output.key))))
    say(*llm.take_notes())
    if config.output.file is not None:
        save_config(config, Path(f"{config.output.file}{SAVED_BESIDE}"), fixed={"date": rows.date})
    return EXIT_FAILED if failures else EXIT_DONE


def _written(
    items: Iterable[StreamEvent | RequestOutput], writer: LiveText | ResultWriter
) -> list[RequestOutput]:
    """Writes results as they arrive; returns those with an error."""
    failed = []
    for item in items:
        writer.add(item)
        if isinstance(item, RequestOutput) and item.error is not None:
            failed.append(item)
    return failed


@contextmanager
def destination(path: str | None) -> Iterator[TextIO]:
    """Opens standard output, or a file that is written atomically. Raises StorageError."""
    if path is None:
        yield data_output()
        return
    with WholeFile(Path(path)) as whole:
        file = io.TextIOWrapper(whole, encoding="utf-8")
        yield file
        file.flush()


@dataclass
class ResultWriter:
    """Writes results in the order of the prompts, each when all before it are written.

    keys: the keys of all prompts, in order. prompts: the prompts by key, for JSON.
    labelled: True writes the prompt's key and the sample's number before each text.
    has_text: False writes token ids, if there is no tokenizer.
    with_prompt: True writes the prompt before each text that continues it.
    """

    keys: Sequence[str]
    file: TextIO
    _: KW_ONLY
    as_json: bool
    labelled: bool
    prompts: Mapping[str, Any] = field(default_factory=dict)
    has_text: bool = True
    with_prompt: bool = True
    _done: dict[str, RequestOutput] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting = list(reversed(self.keys))

    def add(self, item: StreamEvent | RequestOutput) -> None:
        if isinstance(item, StreamEvent):
            return
        self._done[item.key] = item
        while self._waiting and self._waiting[-1] in self._done:
            ready = self._done.pop(self._waiting.pop())
            for line in self._lines(ready):
                print(line, file=self.file)
            self.file.flush()

    def _lines(self, result: RequestOutput) -> list[str]:
        if self.as_json:
            content = self._content(result)
            return [orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS).decode()]
        prompt = (result.prompt or "") if self.with_prompt else ""
        texts = [self._text(prompt, output) for output in result.outputs]
        if not self.labelled:
            return texts
        return [f"[{label(result.key, i, len(texts))}] {text}" for i, text in enumerate(texts)]

    def _text(self, prompt: str, output: CompletionOutput) -> str:
        if output.embedding is not None:
            return str(output.embedding)
        return prompt + output.text if self.has_text else str(output.token_ids)

    def _content(self, result: RequestOutput) -> dict[str, Any]:
        """Makes the JSON of a result as a run has it, with the token ids of prompt and text, or its error."""
        content: dict[str, Any] = {"key": result.key}
        if result.adapter is not None:
            content["adapter"] = result.adapter
        content["prompt"] = self.prompts.get(result.key)
        if result.error is not None:
            return content | {"error": result.error}
        content["prompt_token_ids"] = result.prompt_token_ids
        return content | result_fields(result_body(result), token_ids=True)


SampleKey = tuple[str, int]  # key of the prompt, number of the sample


class LiveText:
    """Streams the text of one output at a time, in the order of the prompts, and buffers the others.

    labelled: True prints the prompt's key and the sample's number before each text.
    with_prompt: True prints the prompt before each text that continues it.
    """

    def __init__(
        self, requests: Sequence[Request], file: TextIO, *, labelled: bool, with_prompt: bool = True
    ) -> None:
        self._turns = [
            (request, sample) for request in requests for sample in range(request.params.num_return_sequences)
        ]
        self._turns.reverse()
        self._labelled = labelled
        self._with_prompt = with_prompt
        self._file = file
        self._kept: dict[SampleKey, list[StreamEvent]] = defaultdict(list)
        self._absent: set[SampleKey] = set()
        self._has_begun = False

    def add(self, item: StreamEvent | RequestOutput) -> None:
        """Prints or buffers an event, and after the end of an output also the buffered next ones."""
        if isinstance(item, StreamEvent):
            self._kept[item.key, item.index].append(item)
        else:  # outputs that were requested and that a search did not find are not waited for
            for request, sample in self._turns:
                if request.key == item.key and sample >= len(item.outputs):
                    self._absent.add((request.key, sample))
        while self._turns and self._print_kept():
            self._turns.pop()
            self._has_begun = False

    def _print_kept(self) -> bool:
        """Prints the buffered events of the current output; returns True if it has ended."""
        request, sample = self._turns[-1]
        if (request.key, sample) in self._absent:
            if self._has_begun:
                self._print("\n")
            return True
        if not self._has_begun:
            self._has_begun = True
            if self._labelled:
                self._print(f"[{label(request.key, sample, request.params.num_return_sequences)}] ")
            self._print((request.prompt or "") if self._with_prompt else "")
        for event in self._kept.pop((request.key, sample), []):
            self._print(event.text)
            if event.finish_reason is not None:
                self._print("\n")
                return True
        return False

    def _print(self, text: str) -> None:
        print(text, end="", flush=True, file=self._file)


def label(key: str, index: int, samples: int) -> str:
    """Names an output by the prompt's key, and the sample's number if there are several."""
    return key if samples == 1 else f"{key}.{index}"
