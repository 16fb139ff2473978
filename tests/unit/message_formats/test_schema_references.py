"""A schema means within another what it means by itself: jsonschema says what it accepts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mindbatch.message_formats.schema_references import SchemaReferences

_ADDRESS = "https://e.org/tools/f.json"
_REFERENCES = st.sampled_from(
    [
        *("#", "#/properties/a", "#/$defs/x", "#/$defs/y~1z", "#/$defs/50%25", "#named", "#/$defs/x/not"),
        *(
            "f.json",
            "f.json#/$defs/x",
            f"{_ADDRESS}#/properties/a",
            "own.json",
            "own.json#/$defs/x",
            "urn:a:b",
        ),
    ]
)
_leaves = st.sampled_from([{}, {"type": "integer"}, {"const": 1}, {"type": "string"}, {"required": ["a"]}])
_schemas = st.recursive(
    _leaves | _REFERENCES.map(lambda reference: {"$ref": reference}),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts})
        | inner.map(lambda schema: {"properties": {"a": schema, "$ref": {}}})
        | inner.map(lambda schema: {"items": schema})
    ),
    max_leaves=4,
)
_values = st.recursive(
    st.sampled_from([None, 1, 2, "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


def _accepts(schema: Any, value: Any) -> bool | None:
    """What a validator says; None where references lead in a circle without an end."""
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except RecursionError:
        return None


@given(st.data(), st.lists(_values, min_size=4, max_size=4))
def test_a_schema_means_the_same_within_another(data: st.DataObject, values: list[Any]) -> None:
    property_, x, y, named, other = (data.draw(_schemas) for _ in range(5))
    parameters = {
        "$id": _ADDRESS,
        "properties": {"a": property_, "b": {"$anchor": "named", **named}},
        "$defs": {
            "x": {"not": {"const": 2}, **x},
            "y/z": y,
            "50%": {"type": "null"},
            "own": {
                "$id": "own.json",
                "$defs": {"x": {"type": "null"}},
                "properties": {"a": {"$ref": "#/$defs/x"}},
            },
            "urn": {"$id": "urn:a:b", "$defs": {"w": other}, "items": {"$ref": "#/$defs/w"}},
        },
    }
    wrapper = {
        "anyOf": [False, {"properties": {"k": SchemaReferences(parameters).rebased("/anyOf/1/properties/k")}}]
    }
    for value in values:
        assert _accepts(wrapper, {"k": value}) == _accepts(parameters, value)


@pytest.mark.parametrize("address", ["http://[", "//[::1/x", "%zz"])
def test_an_address_that_is_no_url_leads_to_itself_alone(address: str) -> None:
    there = {"$id": address, "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}}
    schema = {"$defs": {"there": there}, "items": {"$ref": address}, "not": {"$ref": "https://e.org/["}}
    references = SchemaReferences(schema)
    assert references.target(schema["items"], address) is there
    assert references.target(there["properties"]["a"], "#/properties/b") is there["properties"]["b"]
    assert references.target(there["properties"]["a"], "f.json") is None
    assert references.rebased("/x")["not"] == schema["not"]


def test_what_is_no_reference_is_left_alone() -> None:
    schema = {
        "properties": {"$ref": {"type": "string"}, "$id": {"const": {"$ref": "#"}}},
        "default": {"$ref": "#", "$id": "x"},
        "enum": [{"$ref": "#"}],
        "$defs": {"a": True, "b": {"$ref": "https://elsewhere.org/b"}, "c": {"$ref": "#absent"}},
    }
    assert SchemaReferences(schema).rebased("/x") == schema


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#/$defs/a~1b", 1),
        ("#/$defs%2Fc~0d", 2),
        ("#/anyOf/1", 4),
        ("#/anyOf/2", None),
        (f"#/anyOf/{'1' * 5000}", None),
        ("#/anyOf/-1", None),
        ("#/$defs/a~1b/x", None),
    ],
)
def test_a_pointer_leads_where_the_specification_says(reference: str, target: int | None) -> None:
    schema = {"$defs": {"a/b": 1, "c~d": 2}, "anyOf": [3, 4]}
    assert SchemaReferences(schema).target(schema, reference) == target
