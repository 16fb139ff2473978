"""Tries the parts of a tokenizer.json in a child of limited memory and time, where rules alone do not do.

Expressions are matched with texts that are worst for many of them: long runs of one character, with
something else at their end. Time may grow with the square of a text's length, and no faster.
"""

import json
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mindbatch.io.child_main import serve
from mindbatch.io.children import AnsweringProcess, ChildDied, Limits, ProcessorTimeUsedUp
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts import tokenizer_rules

_LIMITS = Limits(seconds=20.0, memory_bytes=512 << 20)
_ANSWER_BYTES = 64 << 20
_LENGTHS = (100, 300, 900, 2700)  # the time of one bounds that of the next, whatever the expression
_TEXT_SECONDS = 0.25
"""Time that grows with the square of the length is far below: honest files have such expressions (` +$`)."""
_RUNS = ("a", "A", "é", "漢", "1", " ", "\n", ".", "'", "ab ", "a1", " \n", "\u0301")
_MOST_RUNS = 40
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


def refuse_costly(data: bytes, path: Path) -> None:
    """CheckpointError: lists what in the bytes of a tokenizer.json may cost more than texts are worth."""
    content = tokenizer_rules.content_of(data)
    if content is None:
        return
    try:
        errors = tokenizer_rules.cost_errors(content)
        tried = tokenizer_rules.regexes_to_try(content)
    except tokenizer_rules.UnknownForm:
        content |= _answer(content, (), path)
        errors, tried = _judged_as_written(content, path)
    if not errors and tried:
        _answer(content, tried, path)
    if errors:
        raise CheckpointError(f"{path}: {error}" for error in errors)


def _judged_as_written(content: dict[str, Any], path: Path) -> tuple[list[str], list[str]]:
    try:
        return tokenizer_rules.cost_errors(content), tokenizer_rules.regexes_to_try(content)
    except tokenizer_rules.UnknownForm:
        raise CheckpointError(f"{path}: a part of it is in a form that is not known") from None


def _answer(content: dict[str, Any], tried: Iterable[str], path: Path) -> dict[str, Any]:
    """The parts as `tokenizers` writes them, after texts for the expressions have been tried."""
    parts = {name: content.get(name) for name in tokenizer_rules.PARTS}
    request = json.dumps({"parts": parts, "texts": [*_texts(tried)]}).encode("ascii")
    process = AnsweringProcess(main, _LIMITS)
    try:
        answer: dict[str, Any] = process.ask(request, _ANSWER_BYTES)
    except ProcessorTimeUsedUp:
        raise CheckpointError(f"{path}: its expressions take more than {_LIMITS.seconds:g} s") from None
    except ChildDied as error:
        raise CheckpointError(f"{path}: the tokenizer was tried: {error}") from error
    finally:
        process.close()
    if "error" in answer:
        raise CheckpointError(f"{path}: {answer['error']}")
    return dict(answer["parts"])


def _texts(patterns: Iterable[str]) -> Iterable[list[str]]:
    """Runs and what follows them; characters that the expressions themselves hold are among both."""
    own = [*dict.fromkeys(character for pattern in patterns for character in pattern)]
    if own:
        for run in [*dict.fromkeys((*_RUNS, *own))][:_MOST_RUNS]:
            yield from ([run, end] for end in ("", "a", "\x01" + "".join(own)))


def main(connection: Connection, seconds: str, memory_bytes: str) -> None:
    """The whole life of the child; see `child_main.serve` for the limits."""
    serve(connection, _tried, float(seconds), int(memory_bytes))


def _tried(request: dict[str, Any]) -> dict[str, Any]:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(json.dumps(_EMPTY | request["parts"]))
        for run, end in request["texts"]:
            _refuse_slow(backend, run, end)
        written = json.loads(backend.to_str())
        return {"parts": {name: written[name] for name in tokenizer_rules.PARTS}}
    except BaseException as error:  # panics are no Exception
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}


def _refuse_slow(backend: Any, run: str, end: str) -> None:
    """ValueError: it takes far too long for a run of characters."""
    for length in _LENGTHS:
        text = run * (length // len(run)) + end
        began = time.process_time()
        _use(backend, text)
        if (took := time.process_time() - began) > _TEXT_SECONDS:
            raise ValueError(f"its expressions take {took:.1f} s for {length} characters, as {run * 3!a}...")


def _use(backend: Any, text: str) -> None:
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is not None:
        backend.pre_tokenizer.pre_tokenize_str(text)
    if backend.decoder is not None:
        backend.decoder.decode([text])
