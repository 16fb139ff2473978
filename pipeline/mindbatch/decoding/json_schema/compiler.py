"""Compiles a schema: the values it allows, without those that no text has, as a grammar's text."""

from collections.abc import Callable, Sequence
from typing import Any

from mindbatch.decoding.json_schema.graph import SchemaGraph
from mindbatch.decoding.json_schema.rules import grammar_text
from mindbatch.decoding.json_schema.types import Search


def compiled_schema(
    schema: dict[str, Any] | bool, search: Search, empty: Callable[[Sequence[str]], Sequence[str]]
) -> str:
    """The grammar of a schema, of which every text is JSON that the schema allows.

    search: see `TypedValues`. empty: those of some terminals that no text matches.

    Raises:
        ValueError: the reason, with the keyword and its place, as words that follow
            "decoding.json_schema=...: ".
    """
    if schema is False:
        raise ValueError("no text fulfils it")
    graph = SchemaGraph({} if schema is True else schema, search)
    doubtful = graph.doubtful()
    graph.prune(frozenset(empty(doubtful)) if doubtful else frozenset())
    return grammar_text(graph)
