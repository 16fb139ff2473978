"""Names that a mapping on the command line gives twice: Hydra's grammar takes the last and says nothing."""

from antlr4 import InputStream, Token  # type: ignore[import-untyped]
from hydra.grammar.gen.OverrideLexer import OverrideLexer

_OPENING = (OverrideLexer.BRACE_OPEN, OverrideLexer.BRACKET_OPEN)
_CLOSING = (OverrideLexer.BRACE_CLOSE, OverrideLexer.BRACKET_CLOSE)


def repeated_name(override: str) -> str | None:
    """The first name that any mapping within an override, which can be parsed, has twice; None if none is."""
    names: list[set[str]] = []  # of each mapping or list that is open
    words: list[str] = []
    for token in OverrideLexer(InputStream(override)).getAllTokens():
        if token.type in _OPENING:
            names.append(set())
            words.clear()
        elif token.type in _CLOSING:
            names.pop()
            words.clear()
        elif token.type == OverrideLexer.COMMA:
            words.clear()
        elif token.type == OverrideLexer.COLON and names:
            name = "".join(words).strip()
            if name in names[-1]:
                return name
            names[-1].add(name)
            words.clear()
        elif token.channel == Token.DEFAULT_CHANNEL:
            words.append(token.text)
    return None
