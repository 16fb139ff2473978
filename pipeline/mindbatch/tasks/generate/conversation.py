"""`interactive=true`: reads prompts from the terminal and answers each, as single prompts or as a chat."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import StreamEvent
from mindbatch.io.errors import EXIT_DONE, ConfigError
from mindbatch.io.interrupts import Terminated
from mindbatch.io.screen_text import data_output, say
from mindbatch.llm import LLM
from mindbatch.prompts.messages import NO_OPTIONS, ChatOptions
from mindbatch.prompts.prompt_lines import EMPTY_LINE, text_lines
from mindbatch.prompts.prompts import Prompt

INTRODUCTION = "Type a prompt and Enter; an empty line or Ctrl-D leaves."
NO_TEXT = "interactive=true: the model's folder has no tokenizer; give model.tokenizer=FOLDER"


def converse(llm: LLM, params: DecodingParams, *, chat: bool, options: ChatOptions = NO_OPTIONS) -> int:
    """Answers each line on standard input; a chat keeps its history. options: for the chat template.

    At a terminal Ctrl-C ends an answer; its text so far stays in the history.

    Raises ConfigError: the model's folder has no tokenizer, or chat=true and there is no chat template.
    """
    if llm.tokenizer is None:
        raise ConfigError(NO_TEXT)
    if chat:
        llm.refuse_chats("chat=true")
    history: list[dict[str, Any]] = []
    at_terminal = sys.stdin.isatty()
    edited = at_terminal and sys.stdout.isatty()
    for turn, text in enumerate(_typed() if edited else _prompted(sys.stdin.buffer, at_terminal=at_terminal)):
        messages = [*history, {"role": "user", "content": text}] if chat else None
        content = {"text": text} if messages is None else options.content(messages)
        row = Prompt(key=str(turn), source="your prompt", **content)
        answer = _answer(llm, row, params, at_terminal=at_terminal)
        if messages is not None and answer is not None:
            history = [*messages, {"role": "assistant", "content": answer}]
    say(*llm.take_notes())
    return EXIT_DONE


def _prompted(stream: BinaryIO, *, at_terminal: bool) -> Iterator[str]:
    """Yields the typed lines, until an empty one or the end; a pipe gets no prompt sign."""
    _show(f"{INTRODUCTION}\n> " if at_terminal else "")
    for line in text_lines(stream):
        if line.text is not None:
            yield line.text
        elif line.error == EMPTY_LINE:
            return
        else:
            say(f"your prompt: {line.error}")
        _show("> " if at_terminal else "")
    _show("\n" if at_terminal else "")


def _typed() -> Iterator[str]:
    """Yields lines typed at a terminal, edited by readline if Python has it, without a file of history."""
    with suppress(ImportError):
        import readline  # noqa: F401 - `input` edits lines with it
    _show(f"{INTRODUCTION}\n")
    while True:
        try:
            text = input("> ")
            text.encode()
        except EOFError:
            return _show("\n")
        except UnicodeError:
            say("your prompt: is not UTF-8")
            continue
        if not text:
            return
        yield text


def _show(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _answer(llm: LLM, row: Prompt, params: DecodingParams, *, at_terminal: bool) -> str | None:
    """Streams the answer to standard output; returns it, or None if the prompt could not be run."""
    run = llm.submit([(row, params)])
    if run.refused:
        say(run.refused[0].error)
        return None
    parts: list[str] = []
    try:
        for event in run:
            if isinstance(event, StreamEvent):
                parts.append(event.text)
                print(event.text, end="", flush=True, file=data_output())
            elif event.error is not None:
                _show("\n")
                say(event.error)
                return None
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Terminated) or not at_terminal:
            raise
    print(flush=True)  # whoever reads through a pipe must see that the answer is over
    return "".join(parts)
