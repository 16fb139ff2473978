"""Compiles a schema: the values it allows, without those that no text has, as a grammar's text."""

from collections.abc import Callable, Sequence
from typing import Any

from mindbatch.decoding.grammar_worker import NO_TEXT
from mindbatch.decoding.json_schema.branches import Branches
from mindbatch.decoding.json_schema.document import Document
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.graph import SchemaGraph, reason
from mindbatch.decoding.json_schema.keywords import is_false
from mindbatch.decoding.json_schema.rules import grammar_text
from mindbatch.decoding.json_schema.types import Search, TypedValues

EmptyOf = Callable[[Sequence[str]], Sequence[str]]


def compiled_schema(schema: dict[str, Any] | bool, search: Search, empty_of: EmptyOf) -> str:
    """Returns the grammar of a schema, of which every text is JSON that the schema allows.

    search: see `TypedValues`. empty_of: those of some terminals that no text matches.

    Raises:
        ValueError: the reason, with the keyword and its pointer, as words that follow
            "decoding.json_schema=...: ".
    """
    if is_false(schema):
        raise ValueError(NO_TEXT)
    keywords = schema if isinstance(schema, dict) else {}
    branches = Branches(Document(keywords))
    root = branches.conjunction([(keywords, "#")])
    assert root is not None
    graph = SchemaGraph(branches, TypedValues(branches, search))
    try:
        graph.explore(root)
    except SchemaError:
        if not branches.document.errors:
            raise
    if branches.document.errors:
        raise ValueError("; ".join(branches.document.errors))
    values = graph.productive(_empty(graph, empty_of))
    if not values[root]:
        raise SchemaError("#", f"{NO_TEXT}{reason(graph.values, values, root)}")
    _refuse_common_values(branches, search, empty_of)
    return grammar_text(values, root)


def _refuse_common_values(branches: Branches, search: Search, empty_of: EmptyOf) -> None:
    """SchemaError for two alternatives of a oneOf that a value may fulfil, as some validator sees it."""
    graph = SchemaGraph(branches, TypedValues(branches, search, is_wide=True))
    while waiting := [pair for pair in branches.exclusive if pair not in graph.values]:
        for pair in waiting:
            graph.explore(pair)
    values = graph.productive(_empty(graph, empty_of))
    for pair, (one, other) in branches.exclusive.items():
        if values[pair]:
            raise SchemaError(
                one,
                f"a value may fulfil it and {other}, which oneOf forbids; anyOf is supported, and means the "
                "same where no value fulfils two",
            )


def _empty(graph: SchemaGraph, empty_of: EmptyOf) -> frozenset[str]:
    doubtful = graph.doubtful()
    return frozenset(empty_of(doubtful)) if doubtful else frozenset()
