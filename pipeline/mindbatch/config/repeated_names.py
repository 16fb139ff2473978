"""Names that a mapping on the command line gives twice: Hydra's grammar takes the last and says nothing."""

from antlr4 import InputStream, Token  # type: ignore[import-untyped]
from hydra.grammar.gen.OverrideLexer import OverrideLexer

_OPENING = (OverrideLexer.BRACE_OPEN, OverrideLexer.BRACKET_OPEN)
_CLOSING = (OverrideLexer.BRACE_CLOSE, OverrideLexer.BRACKET_CLOSE)


def repeated_name(override: str) -> str | None:
    """The first name that any mapping within an override, which can be parsed, has twice; None if none is."""
    names: list[set[str]] = []  # of each mapping or list that is open
    in_value: list[bool] = []  # of the same: a further colon belongs to the value, as in shipped:PATH
    words: list[str] = []
    for token in OverrideLexer(InputStream(override)).getAllTokens():
        if token.type in _OPENING:
            names.append(set())
            in_value.append(False)
            words.clear()
        elif token.type in _CLOSING:
            names.pop()
            in_value.pop()
            words.clear()
        elif token.type == OverrideLexer.COMMA:
            if in_value:
                in_value[-1] = False
            words.clear()
        elif token.type == OverrideLexer.COLON and names and not in_value[-1]:
            in_value[-1] = True
            name = "".join(words).strip()
            if name in names[-1]:
                return name
            names[-1].add(name)
            words.clear()
        elif token.channel == Token.DEFAULT_CHANNEL:
            words.append(token.text)
    return None
