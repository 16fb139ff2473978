"""The child process that tries grammars out: one JSON text a line in, one JSON answer a line out.

Run as a program, never imported by the package. A line is the grammar's text; the answer is the reason why no
row can follow it, or null. Its arguments are a bound of its memory in bytes and the folder that holds
llguidance.
"""

import json
import resource
import sys
from typing import Any, NoReturn

_END = 256


class _Bytes:
    """A vocabulary of all single bytes and an end token, in the form that llguidance takes."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: object) -> NoReturn:
        raise NotImplementedError("grammars are compiled without forcing, which alone needs this")


def main() -> None:
    memory_bytes, folder = int(sys.argv[1]), sys.argv[2]
    sys.path.append(folder)
    import llguidance

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), slices=[])
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(fault_of(json.loads(line), llguidance, tokenizer)), flush=True)


def fault_of(grammar: str, llguidance: Any, tokenizer: Any) -> "str | None":
    """Why the grammar cannot be used, as llguidance says it."""
    limits = llguidance.LLParserLimits(precompute_large_lexemes=False, verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        return matcher.get_error() or "it cannot be compiled"
    if warnings := matcher.get_grammar_warnings():
        return "; ".join(warnings)
    allowed = matcher.compute_bitmask()
    if matcher.is_error() and "NoExtension" not in matcher.get_error():
        return matcher.get_error() or "it takes too much to follow"
    if any(allowed[: _END // 8]):
        return None
    return "only the empty text fulfils it" if matcher.is_accepting() else "no text fulfils it"


if __name__ == "__main__":
    main()
