"""`interactive=true`: asking for prompts, or keeping up a chat, until the user leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from mindbatch.data.prompts import Prompt
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import StreamEvent
from mindbatch.errors import EXIT_DONE, ConfigError
from mindbatch.llm import LLM

INTRODUCTION = "Type a prompt and Enter; an empty line or Ctrl-D leaves."


def converse(llm: LLM, params: DecodingParams, *, chat: bool, system: str | None) -> int:
    """Answers each line on standard input; a chat keeps its history.

    Raises:
        ConfigError: the model's folder has no tokenizer, or chat=true and there is no chat template.
    """
    if chat and not llm.required_tokenizer.has_chat_template:
        raise ConfigError("chat=true: the model's tokenizer has no chat template; leave chat=true out")
    history: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    print(INTRODUCTION, file=sys.stderr)
    for turn, line in enumerate(_lines()):
        messages = [*history, {"role": "user", "content": line}] if chat else None
        row = Prompt(key=str(turn), source="your prompt", text=None if chat else line, messages=messages)
        answer = _answer(llm, row, params)
        if messages is not None and answer is not None:
            history = [*messages, {"role": "assistant", "content": answer}]
    return EXIT_DONE


def _lines() -> Iterator[str]:
    """Lines until an empty one or the end of the input."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().rstrip("\r\n")
        if not line:
            return
        yield line


def _answer(llm: LLM, row: Prompt, params: DecodingParams) -> str | None:
    """Streams the answer to standard output; None when the prompt could not be run."""
    requests, failures = llm.submit([(row, params)])
    if failures:
        print(f"mindbatch: {failures[0].error}", file=sys.stderr)
        return None
    parts = []
    for event in llm.run(requests):
        if isinstance(event, StreamEvent) and event.index == 0:
            print(event.text, end="", flush=True)
            parts.append(event.text)
    print()
    return "".join(parts)
