"""A schema has one text, however it is given, and what is no schema is refused with a reason."""

import json
import re
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from mindbatch.decoding.json_text import MOST_CHARACTERS, MOST_NESTING, canonical_schema


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
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[]", "holds an array; a JSON schema is an object"),
        ("1", "holds a number"),
        ("null", "holds null"),
        (None, "holds null"),
        (3.5, "holds a number"),
        (["a"], "holds an array"),
        (b"{}", "holds a Python bytes"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
        ('{"const": NaN}', "NaN is no number"),
        ('{"const": 1e999}', "the number '1e999', which is too large"),
        ({"const": float("nan")}, "the number nan"),
        ({"const": {1, 2}}, "a Python set"),
        ({1: "a"}, "the key 1; keys of JSON are texts"),
        ('{"const": "\\ud800"}', "half a character (\\ud800)"),
        ({"\udfff": 1}, "half a character (\\udfff)"),
        ('{"minimum": ' + "1" * 101 + "}", "a number of 101 digits"),
        ("[" * 50_000, "is nested too deeply"),
        ('{"items":' * 101 + "{}" + "}" * 101, f"at most {MOST_NESTING} levels"),
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
