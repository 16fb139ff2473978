"""Tests parts of a tokenizer.json in a child of limited memory and time if rules alone do not suffice.

Expressions are matched with texts that are the worst for many of them: long runs of one character with a
different end. Their time may grow with the square of a text's length, and no faster.
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
_LENGTHS = (100, 300, 900, 2700)  # the time of one length bounds that of the next for any expression
_TEXT_SECONDS = 0.25
"""Far above the time of quadratic expressions, which ordinary files have (` +$`)."""
_RUNS = ("a", "A", "é", "漢", "1", " ", "\n", ".", "'", "ab ", "a1", " \n", "\u0301")
_MAX_RUNS = 40
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


def refuse_costly(data: bytes, path: Path) -> None:
    """Raises CheckpointError with the parts of a tokenizer.json that may take too much time or memory."""
    content = tokenizer_rules.content_of(data)
    if content is None:
        return
    try:
        errors = tokenizer_rules.cost_errors(content)
        tried = tokenizer_rules.regexes_to_try(content)
    except tokenizer_rules.UnknownForm:
        content |= _answer(content, (), path)
        errors, tried = _errors_of_normal_form(content, path)
    if not errors and tried:
        _answer(content, tried, path)
    if errors:
        raise CheckpointError(f"{path}: {error}" for error in errors)


def _errors_of_normal_form(content: dict[str, Any], path: Path) -> tuple[list[str], list[str]]:
    try:
        return tokenizer_rules.cost_errors(content), tokenizer_rules.regexes_to_try(content)
    except tokenizer_rules.UnknownForm:
        raise CheckpointError(f"{path}: a part has an unknown form") from None


def _answer(content: dict[str, Any], tried: Iterable[str], path: Path) -> dict[str, Any]:
    """Tests the expressions in the child; returns the parts as `tokenizers` writes them."""
    parts = {name: content.get(name) for name in tokenizer_rules.PARTS}
    request = json.dumps({"parts": parts, "texts": [*_texts(tried)]}).encode("ascii")
    process = AnsweringProcess(main, _LIMITS)
    try:
        answer: dict[str, Any] = process.ask(request, _ANSWER_BYTES)
    except ProcessorTimeUsedUp:
        raise CheckpointError(f"{path}: its expressions take more than {_LIMITS.seconds:g} s") from None
    except ChildDied as error:
        raise CheckpointError(f"{path}: testing the tokenizer failed: {error}") from error
    finally:
        process.close()
    if "error" in answer:
        raise CheckpointError(f"{path}: {answer['error']}")
    return dict(answer["parts"])


def _texts(patterns: Iterable[str]) -> Iterable[list[str]]:
    """Yields runs and their ends, both of which include the characters in the expressions."""
    used = [*dict.fromkeys(character for pattern in patterns for character in pattern)]
    if used:
        for run in [*dict.fromkeys((*_RUNS, *used))][:_MAX_RUNS]:
            yield from ([run, end] for end in ("", "a", "\x01" + "".join(used)))


def main(connection: Connection, seconds: str, memory_bytes: str) -> None:
    """Runs the child; see `child_main.serve` for the limits."""
    serve(connection, _tried, float(seconds), int(memory_bytes))


def _tried(request: dict[str, Any]) -> dict[str, Any]:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(json.dumps(_EMPTY | request["parts"]))
        for run, end in request["texts"]:
            _refuse_slow(backend, run, end)
        written = json.loads(backend.to_str())
        return {"parts": {name: written[name] for name in tokenizer_rules.PARTS}}
    except BaseException as error:  # panics are not Exceptions
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}


def _refuse_slow(backend: Any, run: str, end: str) -> None:
    """Raises ValueError if a run of characters takes too long."""
    for length in _LENGTHS:
        text = run * (length // len(run)) + end
        began = time.process_time()
        _use(backend, text)
        if (took := time.process_time() - began) > _TEXT_SECONDS:
            raise ValueError(
                f"its expressions take {took:.1f} s for {length} characters, such as {run * 3!a}..."
            )


def _use(backend: Any, text: str) -> None:
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is not None:
        backend.pre_tokenizer.pre_tokenize_str(text)
    if backend.decoder is not None:
        backend.decoder.decode([text])
