"""Every text that a schema's constraint lets through is valid; what is valid is let through or documented."""

import json
from decimal import Context, Decimal, localcontext
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from random_schemas import (
    FORMATS,
    accepts,
    allowed_bytes,
    candidates,
    document,
    matcher_of,
    random_text,
    texts_of,
)

from mindbatch.decoding.grammar import Grammar, GrammarProcess

PROCESS = GrammarProcess()
UNCHECKED = set(FORMATS) - set(Draft202012Validator.FORMAT_CHECKER.checkers)
"""Formats that the validator takes for notes without further packages."""


def exact(text: str) -> Decimal | int:
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else number


def is_valid(schema: Any, text: str) -> bool:
    """True if a text is valid both with exact decimal numbers and with doubles."""
    written = json.dumps(schema)
    with localcontext(Context(prec=100)):
        return all(
            Draft202012Validator(
                json.loads(written, parse_float=reader),
                format_checker=Draft202012Validator.FORMAT_CHECKER,
            ).is_valid(json.loads(text, parse_float=reader))
            for reader in (exact, float)
        )


def check_schema(seed: int) -> str:
    """Compares a random schema's constraint with the validator; what became of it."""
    rng = Random(seed)
    schema = document(rng)
    check = PROCESS.tried(Grammar("json_schema", json.dumps(schema)))
    has_unchecked_format = any(f'"format": "{name}"' in json.dumps(schema) for name in UNCHECKED)
    if check.error is not None:
        if "no text fulfils it" in check.error and not has_unchecked_format:
            texts = [text for value in candidates(rng, 20) for text in texts_of(value)]
            assert not any(is_valid(schema, text) for text in texts), (schema, texts)
        return check.error
    matcher = matcher_of(check.text)
    for _ in range(6):
        text = random_text(matcher, rng)
        assert text is None or is_valid(schema, text), (schema, text)
    for value in candidates(rng, 20):
        texts = [*texts_of(value)]
        accepted, valid = any(accepts(matcher, text) for text in texts), is_valid(schema, texts[0])
        assert accepted == valid or (valid and has_unchecked_format), (schema, value)
    return ""


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_what_a_random_schema_lets_through_is_valid(first: int) -> None:
    compiled = [check_schema(seed) == "" for seed in range(first, first + 10)]
    assert sum(compiled) >= 4


@pytest.mark.on_demand
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_what_many_random_schemas_let_through_is_valid(first: int) -> None:
    compiled = [check_schema(seed) == "" for seed in range(first, first + 100)]
    assert sum(compiled) >= 50


def accepted(schema: Any, texts: list[str]) -> list[str]:
    check = PROCESS.tried(Grammar("json_schema", json.dumps(schema)))
    assert check.error is None, check.error
    matcher = matcher_of(check.text)
    return [text for text in texts if accepts(matcher, text)]


BIG = 9007199254740993
"""Not a double: it rounds to the number before."""
LEAVES: list[tuple[Any, str, str]] = [
    (
        {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.75},
        "1.51 1.7 1.7499",
        "1.5 1.50 1.75 1.76 1 2",
    ),
    (
        {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.75},
        "1.6",
        "1.5000000000000000001 1.74999999999999999999",
    ),
    (
        {"type": "number", "minimum": -0.25, "maximum": 10},
        "-0.25 -0.1 -0.0 0 9.99 10 10.0",
        "-0.26 -1 10.1 11 1e1",
    ),
    ({"type": "number", "exclusiveMinimum": 0}, "0.001 1 10.5", "0 0.0 -0.0 -1"),
    ({"type": "number", "exclusiveMaximum": 0}, "-0.001 -1", "0 0.0 -0.0 1"),
    ({"type": "integer", "exclusiveMinimum": -3, "maximum": 12.5}, "-2 0 9 10 12", "-3 13 -0 1.0 01"),
    ({"enum": [BIG, 2**63 - 1]}, f"{BIG} {2**63 - 1}", f"{BIG - 1} {2**63} 9.007199254740993e15"),
    ({"const": -(2**63) + 1}, str(-(2**63) + 1), f"{-(2**63)} {2**63 - 1}"),
    (
        {"type": "integer", "minimum": BIG, "maximum": 10**30 + 1},
        f"{BIG} {10**30 + 1}",
        f"{BIG - 1} {10**30 + 2}",
    ),
    ({"type": "number", "minimum": BIG}, f"{BIG} {BIG + 1}", f"{BIG - 1} 1.5 {BIG}.5"),
    ({"enum": [1.0, 0.5, True]}, "1 1.0 0.5 true", "1.00 0.50 false"),
    ({"type": "integer", "multipleOf": 7, "minimum": -20}, "-14 0 7 700", "-21 8 1"),
    ({"type": "integer", "multipleOf": 1.5}, "0 3 -6", "1 2"),
    ({"type": "number", "multipleOf": 0.25}, "1 0.25 -7.5 12.50", "0.2 0.251"),
    (
        {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 0.1},
        "0 0.01 0.06 0.1",
        "0.07 0.005 0.11",
    ),
    (
        {"type": "string", "maxLength": 2},
        '"" "é👩" "\\n\\n" "\\u0001a"',
        '"abc" "\\u0061" "\\u0008" "\\/" "👩👩👩"',
    ),
    ({"type": "string", "pattern": "a|^b"}, '"xax" "b" "bx"', '"xb" ""'),
    ({"type": "string", "pattern": r"^\d$"}, '"7"', '"٣" "77" "7\\n"'),
    ({"type": "string", "pattern": r"^[^\w]$"}, '"-" "\\"" "\\n"', '"a" "é"'),
    ({"type": "string", "pattern": "^.$"}, '"a" "\\t" "\\""', '"\\n" "\\r" "\u2028"'),
    ({"enum": ['q"', "\\", "é\n"]}, '"q\\"" "\\\\" "é\\n"', '"q" "é"'),
    (
        {"type": "string", "format": "date"},
        '"2024-02-29" "2000-02-29" "0001-12-31"',
        '"2023-02-29" "1900-02-29" "0000-01-01" "2024-04-31"',
    ),
    (
        {"type": "string", "format": "time"},
        '"23:59:59.5+05:30" "00:00:00Z"',
        '"23:59:60Z" "24:00:00Z" "12:00:00"',
    ),
    (
        {"type": "string", "format": "date-time"},
        '"2024-02-29T00:00:00Z"',
        '"2023-02-29T00:00:00Z" "2024-01-01t00:00:00z"',
    ),
    ({"type": "string", "format": "duration"}, '"P1Y2M" "PT1H" "P2W" "P1DT2H"', '"P" "PT" "P1Y2D" "P1W1D"'),
    ({"type": "string", "format": "hostname"}, '"a-b.example.com" "1.2"', '"-a" "a-" "a..b" "xn--a"'),
    ({"type": "string", "format": "email"}, '"a.b+c@d-e.fr"', '"a@" "a..b@c.de" ".a@b.c"'),
    (
        {"type": "string", "format": "ipv6"},
        '"::" "1::2" "::ffff:1.2.3.4" "1:2:3:4:5:6:7::"',
        '"1::2::3" "1:2" "1:2:3:4:5:6:7:8::"',
    ),
    (
        {"type": "string", "format": "uri"},
        '"http://a.b:80/c?d=e#f" "urn:a:b" "http://[::1]/"',
        '"a" "//a" "http://[1]/"',
    ),
    ({"type": ["integer", "null"], "format": "int32"}, "1 null", '1.5 "a"'),
    ({"type": "string", "format": "binary"}, '"" "a"', "1"),
    (
        {"type": "string", "format": "uuid4"},
        '"123e4567-e89b-42d3-a456-426614174000"',
        '"123e4567-e89b-12d3-a456-426614174000"',
    ),
    ({"type": "string", "format": "uri-reference"}, '"" "a/b?c#d" "/x" "//h/x" "#f" "a:b"', '":b" "a\\"'),
    ({"type": "string", "format": "json-pointer"}, '"" "/a~1b//"', '"a" "/~" "/~2"'),
    (
        {"type": "number", "multipleOf": 0.01, "minimum": 0},
        "0 0.07 0.10 1234567.89",
        "0.001 -1 1e2 123456789012345.67",
    ),
    ({"type": "number", "multipleOf": 0.05, "maximum": 0.35}, "0.3 0.35 -7.15", "0.36 0.31 0.4"),
    ({"type": "integer", "multipleOf": 0.01}, "7 -100", "0.07"),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True, "exclusiveMaximum": False}, "0.5 9", "0 0.0"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), LEAVES, ids=lambda value: json.dumps(value)[:60])
def test_values_without_parts(schema: Any, good: str, bad: str) -> None:
    assert accepted(schema, [*good.split(" "), *bad.split(" ")]) == good.split(" ")


PAIR = [{"type": "string"}, {"type": "integer"}]
TAGGED = [
    {"type": "object", "properties": {"k": {"const": "a", "default": "a"}, "x": {"type": "integer"}}},
    {"type": "object", "properties": {"k": {"const": "b", "default": "b"}}},
]
PARTS: list[tuple[Any, list[str], list[str]]] = [
    (
        {"prefixItems": PAIR, "items": False, "type": "array"},
        ["[]", '["a"]', '["a", 1]'],
        ["[1]", '["a", 1, 2]'],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": PAIR,
            "additionalItems": {"type": "null"},
        },
        ["[]", '["a",1,null]', "7"],
        ["[1]", '["a",1,2]'],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/a",
            "maxLength": 1,
            "definitions": {"a": {"type": "string"}},
        },
        ['"abc"'],
        ["1"],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": 5,
        },
        ['{"a":1}'],
        ["1"],
    ),
    (
        {"type": "array", "items": PAIR, "additionalItems": {"type": "null"}},
        ["[]", '["a",1,null]'],
        ["[1]", '["a",1,2]'],
    ),
    (
        {"type": "object", "dependencies": {"a": ["b"]}, "properties": {"a": True, "b": True}},
        ["{}", '{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    (
        {"type": "object", "properties": {"a": {"not": {}}, "b": {"anyOf": [{"const": 1}, {"not": {}}]}}},
        ["{}", '{"b":1}'],
        ['{"a":1}', '{"b":2}'],
    ),
    (
        {"discriminator": {"propertyName": "k"}, "oneOf": TAGGED},
        ['{"k":"a","x":1}', '{"k":"b","x":"c"}'],
        ["{}", '{"x":1}', '{"k":"a","x":"c"}'],
    ),
    ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b":1}'], ['{"a":1}', "1"]),
    ({"enum": [1, 2, "x", None, "y"], "not": {"enum": [2, None, "x"]}}, ["1", '"y"'], ["2", "null", '"x"']),
    (
        {
            "type": "object",
            "properties": {"c": {"enum": ["us", "ca"]}, "z": {"type": "string"}},
            "if": {"properties": {"c": {"const": "us"}}},
            "then": {"properties": {"z": {"pattern": "^[0-9]$"}}},
            "else": {"properties": {"z": {"pattern": "^[A-Z]$"}}},
        },
        ['{"c":"us","z":"1"}', '{"c":"ca","z":"A"}', '{"z":"1"}', "{}"],
        ['{"c":"us","z":"A"}', '{"c":"ca","z":"1"}', '{"z":"A"}'],
    ),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
        ['{"a":1}', '{"b":1,"c":1}', '{"a":1,"b":1}'],
        ["{}", '{"b":1}', '{"a":1,"b":1,"c":1}'],
    ),
    (
        {"type": "array", "uniqueItems": True, "items": {"enum": ["a", 1, 1.0, None, True]}, "minItems": 1},
        ["[1]", "[1.0]", '["a",1,true,null]', '[null,"a"]'],
        ["[]", "[1,1.0]", '["a","a"]', "[1,null,1]"],
    ),
    (
        {
            "type": "array",
            "uniqueItems": True,
            "maxItems": 2,
            "items": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 30}, {"enum": [30, "x"]}]},
        },
        ["[]", "[30,1]", '["x",30]'],
        ["[30,30]", "[1,2,3]", "[31]"],
    ),
    ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, ['"a"'], ['"abc"', "1"]),
    ({"$ref": "#n", "$defs": {"a": {"$anchor": "n", "const": 1}}}, ["1"], ["2"]),
    (
        {"$id": "http://a.b/c", "$ref": "http://a.b/c#/$defs/a%25~1~0", "$defs": {"a%/~": {"const": 1}}},
        ["1"],
        ["2"],
    ),
    (
        {"const": {"b": [1, None], "a": "x"}},
        ['{"b":[1,null],"a":"x"}'],
        ['{"a":"x","b":[1,null]}', '{"b":[1,null]}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "patternProperties": {"^a": {"minimum": 3}},
            "additionalProperties": False,
        },
        ["{}", '{"a":3}', '{"a":3,"ab":"x"}'],
        ['{"a":2}', '{"ab":2}', '{"b":1}'],
    ),
    (
        {"type": "object", "patternProperties": {"^a": {"minimum": 3}, "b$": {"maximum": 5}}},
        ['{"ab":4}', '{"a":9}', '{"b":1}', '{"c":9}'],
        ['{"ab":2}', '{"ab":6}', '{"b":6}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": True, "b": True, "c": False},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        ['{"a":1}', '{"b":1}'],
        ["{}", '{"a":1,"b":1}', '{"c":1}'],
    ),
    (
        {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"const": 1}},
        ['{"a":1}', '{"a":1,"b":1}'],
        ["{}", '{"a":1,"b":1,"c":1}', '{"a":2}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": True, "b": True},
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"b": {"maxProperties": 2}},
        },
        ["{}", '{"b":1}', '{"a":1,"b":1}'],
        ['{"a":1}', '{"a":1,"b":1,"c":1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"next": {"$ref": "#"}, "n": {"const": 0}},
            "additionalProperties": False,
        },
        ["{}", '{"next":{"next":{"n":0}}}'],
        ['{"next":1}'],
    ),
    (
        {"type": "object", "patternProperties": {r"^\d$": False}},
        ['{"a":1}', '{"77":1}'],
        ['{"7":1}', '{"٣":1}', '{"7\\n":1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"abc": True},
            "propertyNames": {"anyOf": [{"pattern": "^a.$"}, {"const": "x"}]},
        },
        ["{}", '{"x":1}', '{"ab":1,"x":1}'],
        ['{"abc":1}', '{"b":1}'],
    ),
    (
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "type": "object",
            "$defs": {
                "a": {"properties": {"x": {"$ref": "#/$defs/a"}, "v": {"minimum": 1}}},
                "b": {"properties": {"x": {"$ref": "#/$defs/b"}, "v": {"maximum": 1}}},
            },
        },
        ['{"x":{"v":1}}', '{"v":1}'],
        ['{"x":{"v":2}}', '{"x":{"v":0}}'],
    ),
    (
        {
            "type": "object",
            "oneOf": [
                {
                    "properties": {"kind": {"const": kind}, kind: {"type": "integer"}},
                    "required": ["kind", kind],
                    "additionalProperties": False,
                }
                for kind in ("a", "b")
            ],
        },
        ['{"kind":"a","a":1}', '{"kind":"b","b":1}'],
        ['{"kind":"a","b":1}'],
    ),
    (
        {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}]},
        ["3", "3.5"],
        ["2.5"],
    ),
    ({"type": "object", "uniqueItems": False, "unevaluatedProperties": True, "if": True}, ["{}"], ["1"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), PARTS, ids=lambda value: json.dumps(value)[:60])
def test_values_with_parts(schema: Any, good: list[str], bad: list[str]) -> None:
    assert accepted(schema, [*good, *bad]) == good


@pytest.mark.parametrize(
    ("schema", "beginning"),
    [
        (
            {
                "type": "object",
                "properties": {"score": {"type": "integer"}},
                "patternProperties": {"^score$": {"type": "integer"}},
                "additionalProperties": False,
            },
            '{"score":1',
        ),
        ({"type": "array", "items": {"type": "string", "pattern": "^a$", "minLength": 2}}, "["),
        (
            {
                "type": "object",
                "properties": {"b": {"const": 1}, "a": {"enum": []}},
                "required": ["b"],
                "additionalProperties": False,
            },
            '{"b":1',
        ),
    ],
)
def test_nothing_is_begun_that_cannot_be_ended(schema: Any, beginning: str) -> None:
    matcher = matcher_of(PROCESS.tried(Grammar("json_schema", json.dumps(schema))).text)
    for byte in beginning.encode():
        assert matcher.consume_token(byte)
    allowed = allowed_bytes(matcher)
    assert {*b"}]"} & allowed
    assert not {*b',"'} & allowed
