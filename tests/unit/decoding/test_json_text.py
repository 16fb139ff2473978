"""A schema has one text, however it is given, and what is no schema is refused with a reason."""

import json
import re
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from mindbatch.decoding.grammar import MOST_CHARACTERS, MOST_NESTING, canonical_schema


@pytest.mark.parametrize(
    "given",
    [
        '{"type": "object",\n "required": ["b", "a"], "description": "ü\\n"}',
        {"type": "object", "required": ["b", "a"], "description": "ü\n"},
        OrderedDict(type="object", required=("b", "a"), description="ü\n"),
        MappingProxyType({"type": "object", "required": ["b", "a"], "description": "\u00fc\n"}),
    ],
)
def test_every_form_has_the_same_text_in_the_schemas_order(given: Any) -> None:
    text = canonical_schema(given)
    assert text == '{"type":"object","required":["b","a"],"description":"ü\\n"}'
    assert canonical_schema(text) == text


@pytest.mark.parametrize(("given", "text"), [(True, "true"), ("false", "false"), ({}, "{}")])
def test_a_schema_may_be_true_false_or_empty(given: Any, text: str) -> None:
    assert canonical_schema(given) == text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[]", "found []; a JSON schema is an object"),
        ("1", "found 1;"),
        ("null", "found null;"),
        (None, "found null;"),
        (3.5, "found 3.5;"),
        (["a"], "found [a];"),
        (b"{}", "found b'{}';"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        ('{"const": NaN}', "NaN is no number of JSON"),
        ('{"const": 1e999}', "the number '1e999' is too large"),
        ({"const": float("nan")}, "schema.const=nan: must be text, a number"),
        ({"const": {1, 2}}, "schema.const={1, 2}: must be text"),
        ({1: "a"}, "schema: key 1 must be a string"),
        ('{"const": "\\ud800"}', "schema.const: is not valid Unicode: lone surrogate U+D800"),
        ({"\udfff": 1}, "schema: key '\\udfff' is not valid Unicode"),
        ('{"minimum": ' + "1" * 101 + "}", "a number of the JSON has 101 digits"),
        ("[" * 50_000, "is nested too deeply"),
        ('{"items":' * 101 + "{}" + "}" * 101, f"nested more than {MOST_NESTING} deep"),
        ('"' + "x" * MOST_CHARACTERS + '"', f"at most {MOST_CHARACTERS} are allowed"),
        ({"description": "x" * MOST_CHARACTERS}, f"at most {MOST_CHARACTERS} are allowed"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        canonical_schema(given)
    assert "\n" not in str(caught.value)


def test_the_deepest_schema_that_is_allowed() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MOST_NESTING):
        schema = {"items": schema}
    assert json.loads(canonical_schema(schema)) == schema
