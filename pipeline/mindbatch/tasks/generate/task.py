"""`mindbatch generate`: prompts in, text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from mindbatch.calls import Run
from mindbatch.config.paths import SAVED_BESIDE
from mindbatch.config.tree import save_config
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.llm import LLM
from mindbatch.prompts.chat_options import chat_options
from mindbatch.prompts.prompts import PromptRows
from mindbatch.screen_text import say
from mindbatch.streaming import TextStreamer
from mindbatch.tasks.generate.conversation import converse
from mindbatch.tasks.generate.output import Destination, LiveText, Progress, ResultWriter
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
        options = chat_options(config.system, config.tools, config.chat_template_kwargs)
        with LoadingLine() as line:
            llm = LLM.from_config(config.model, config.runtime, line)
        return converse(llm, params, chat=config.chat, options=options)
    rows = config.prompt_rows()
    with LoadingLine() as line:
        return _generate(config, params, rows, line)


def _generate(config: GenerateConfig, params: DecodingParams, rows: PromptRows, line: LoadingLine) -> int:
    llm = LLM.from_config(config.model, config.runtime, line)
    if config.stream and llm.tokenizer is None:
        raise ConfigError(STREAM_NEEDS_TEXT)
    run = llm.submit((row, params) for row in rows.prompts)
    failures = run.refused + [
        RequestOutput.failed(row.key, f"{row.source}: {row.reason}") for row in rows.errors
    ]
    labelled = len(run.requests) + len(failures) > 1 or params.num_return_sequences > 1
    with Destination(config.output.file) as destination:
        if config.stream:
            failures += _stream(llm, run, params, destination, labelled, line)
        else:
            failures += _write(llm, run, failures, config, destination, labelled, line)
    say(*(failure.error for failure in sorted(failures, key=lambda output: int(output.key))))
    if config.output.file is not None:
        save_config(config, Path(f"{config.output.file}{SAVED_BESIDE}"))
    return EXIT_FAILED if failures else EXIT_DONE


def _stream(
    llm: LLM,
    run: Run,
    params: DecodingParams,
    destination: Destination,
    labelled: bool,
    line: LoadingLine,
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
            file=destination.file,
        )

    live = LiveText(run.requests, streamer, destination.file, labelled=labelled)
    failures = []
    for item in line.until_first(run):
        if isinstance(item, RequestOutput):
            live.finish(item)
            failures += [item] if item.error is not None else []
        else:
            live.put(item)
    return failures


def _write(
    llm: LLM,
    run: Run,
    failures: Iterable[RequestOutput],
    config: GenerateConfig,
    destination: Destination,
    labelled: bool,
    line: LoadingLine,
) -> list[RequestOutput]:
    """Writes each result once all before it are there; returns those of prompts that could not go on."""
    keys = sorted([request.key for request in run.requests] + [failure.key for failure in failures], key=int)
    writer = ResultWriter(
        keys,
        destination.file,
        as_json=config.output.format == "json",
        labelled=labelled,
        has_text=llm.tokenizer is not None,
    )
    for failure in failures:
        writer.add(failure)
    failed = []
    if len(keys) > 1:
        line.stop()  # there may be a progress bar
    with Progress(len(run.requests), shown=len(keys) > 1, output=destination.file) as progress:
        for item in line.until_first(run):
            if isinstance(item, RequestOutput):
                writer.add(item)
                failed += [item] if item.error is not None else []
            progress.count(item)
    return failed
