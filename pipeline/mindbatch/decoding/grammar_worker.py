"""The child process that tries grammars out; started by `grammar`.

A request is a question and what it is about. `try` a grammar: the answer is a pair, the reason why no row can
follow it, or null, and the bytes that it takes. `errors` of terminals: for each the same reason, NO_TEXT
if no text matches it. `search`: the patterns that are found in each of some names.
"""

import ctypes
import re
import resource
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from mindbatch.io.child_main import serve

_END = 256
NO_TEXT = "no text fulfils it"
OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Of every grammar: each way of writing a text in tokens stays allowed, not the tokeniser's own alone."""


class LibraryVocabulary:
    """Tokens and an end token behind them, in the form that llguidance takes."""

    bos_token_id = None

    def __init__(self, tokens: "list[bytes]") -> None:
        self.tokens = [*tokens, b"<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: object) -> NoReturn:
        raise NotImplementedError("grammars are compiled without forcing, which alone needs this")


def main(connection: Connection, seconds: str, memory_bytes: str) -> None:
    """The whole life of the process; see `child_main.serve` for the limits."""
    import llguidance

    every_byte = LibraryVocabulary([bytes([byte]) for byte in range(_END)])
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(every_byte), slices=[])
    answer = partial(answer_to, llguidance=llguidance, tokenizer=tokenizer)
    serve(connection, answer, float(seconds), int(memory_bytes))


def answer_to(request: "tuple[str, Any]", llguidance: Any, tokenizer: Any) -> Any:
    question, subject = request
    if question == "search":
        patterns, names = subject
        return [[pattern for pattern in patterns if re.search(pattern, name)] for name in names]
    if question == "errors":
        grammars = (f"{OPTIONS}start: T\nT: {terminal}" for terminal in subject)
        return [_error(_matcher(grammar, llguidance, tokenizer)) for grammar in grammars]
    return trial_of(subject, llguidance, tokenizer)


def trial_of(grammar: str, llguidance: Any, tokenizer: Any) -> "tuple[str | None, int]":
    """Compiles the grammar: llguidance's reason against it, or None, and the bytes this process grew by."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier grammars have given back does not count
    before = _resident_bytes()
    matcher = _matcher(grammar, llguidance, tokenizer)
    return _error(matcher), max(0, _resident_bytes() - before)


def _matcher(grammar: str, llguidance: Any, tokenizer: Any) -> Any:
    limits = llguidance.LLParserLimits(precompute_large_lexemes=False, verbose_errors=False)
    return llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def _error(matcher: Any) -> "str | None":
    if matcher.is_error():
        return str(matcher.get_error() or "it cannot be compiled")
    if warnings := matcher.get_grammar_warnings():
        return "; ".join(warnings)
    allowed = matcher.compute_bitmask()
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        return str(matcher.get_error() or "it takes too much to follow")
    if any(allowed[: _END // 8]):
        return None
    return "only the empty text fulfils it" if matcher.is_accepting() else NO_TEXT


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
