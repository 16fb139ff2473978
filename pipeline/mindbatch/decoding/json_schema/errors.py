"""Errors of a schema: the keyword, where it stands and what is allowed."""


class SchemaError(ValueError):
    """A schema that cannot be held exactly, as words that follow "decoding.json_schema=...: "."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"at {pointer}: {reason}")
