"""Constraints mean what Python's `re` and JSON Schema say, or are refused with the reason, within bounds."""

import json
import re
import subprocess
import sys
import unicodedata
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.grammar import (
    MAX_CHARACTERS,
    MAX_NESTING,
    Grammar,
    GrammarProcess,
    canonical_schema,
    constraint_error,
)
from mindbatch.decoding.python_regex import MAX_CHARACTERS as MAX_REGEX_CHARACTERS
from mindbatch.decoding.python_regex import translated
from mindbatch.io.children import Limits
from mindbatch.io.errors import ConfigError

D2020 = "https://json-schema.org/draft/2020-12/schema"
COSTLY = {"type": "integer", "multipleOf": 1000003}
"""Compiling this takes many seconds."""
MANY = {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{30 + i}}}$"} for i in range(26)]}
"""Compiling this takes gigabytes."""


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}",
        "x*",
        "a/b\n\x00é🙂",
        "a{100000}",
        "(((a{1000}){1000}){1000}){1000}",
        "(a|b)*a(a|b){200}",
        "(.*)*(.*)*z",
        "(" * 60 + "a" + ")" * 60,
        "|".join(f"word{i}" for i in range(5000)),
    ],
)
def test_sound_patterns_have_no_fault_however_large_what_they_match(pattern: str) -> None:
    assert constraint_error(pattern, None) is None
    assert constraint_error(None, None) is None


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "is no regular expression (unterminated character set at position 0)"),
        ("", "only the empty text fulfils it"),
        ("^(|)$", "only the empty text fulfils it"),
        (r"a[^\s\S]", "no text fulfils it"),
    ],
)
def test_bad_patterns_are_named_with_the_reason(pattern: str, reason: str) -> None:
    fault = constraint_error(pattern, None)
    assert fault is not None
    assert fault.startswith(f"decoding.regex={pattern!r}"[:80])
    assert reason in fault
    assert "\n" not in fault
    assert len(fault) < 500


@pytest.mark.slow
def test_a_costly_schema_has_a_fault_before_it_is_compiled_beside_the_model() -> None:
    fault = constraint_error(None, json.dumps(COSTLY))
    assert fault is not None
    assert "compiling it" in fault


def test_parameters_are_made_without_compiling_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a row that is finished is not judged again by what limits a compilation."""
    monkeypatch.setattr("mindbatch.decoding.grammar._process", None)
    assert DecodingParams(json_schema=COSTLY).json_schema is not None
    with pytest.raises(ConfigError, match="unterminated"):
        DecodingParams(regex="[")


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": ["string", "null"], "description": "%json /x/ {}"},
        {"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"type": "array", "minItems": 100000, "items": {"type": "integer"}},
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "number", "minimum": 0.5}]},
    ],
)
def test_sound_schemas_have_no_fault(schema: Any) -> None:
    assert constraint_error(None, json.dumps(schema)) is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (False, "no text fulfils it"),
        ({"type": "foo"}, "at #: type='foo': must be one or more of null, boolean"),
        (
            {"properties": {"a/b": {"minLength": -1}}},
            "at #/properties/a~1b: minLength=-1: must be a whole number",
        ),
        ({"minLenght": 3}, "at #: 'minLenght' is no keyword; did you mean minLength?"),
        ({"$schema": D2020, "items": [{}]}, "at #: items=[{}]: must be a schema"),
        ({"$schema": D2020, "additionalItems": {}}, "additionalItems is a keyword of draft 7"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema='http://json-schema.org/draft-03"),
        ({"not": {}}, "no text fulfils it"),
        ({"not": {"pattern": "a"}}, "at #/not: pattern is not supported where not, if or oneOf negates it"),
        ({"not": {"type": "integer"}}, "at #/not: type=integer is not supported where not"),
        (
            {"not": {"enum": [[1]]}},
            "at #/not: an object or array in const or enum is not supported where not",
        ),
        ({"if": {"if": True}, "then": False}, "at #/if: if is not supported where not"),
        ({"contains": {}}, "contains is not supported"),
        ({"uniqueItems": True}, "at #: uniqueItems is supported where items are of an enum"),
        (
            {"items": {"enum": [1, {"a": 1}]}, "uniqueItems": True},
            "at #: uniqueItems is supported where items are of an enum",
        ),
        (
            {"prefixItems": [{"type": "boolean"}] * 2, "items": False, "uniqueItems": True},
            "at #: uniqueItems is supported where items are of an enum",
        ),
        ({"items": {"enum": [*range(11)]}, "uniqueItems": True}, "11 values are too many for uniqueItems"),
        (
            {"items": {"enum": [1, 1.0, True]}, "uniqueItems": True, "minItems": 3, "type": "array"},
            "no text fulfils it",
        ),
        ({"if": True, "then": False}, "no text fulfils it"),
        (
            {"type": "object", "propertyNames": {"maxLength": 1}, "required": ["ab"]},
            "no text fulfils it",
        ),
        (
            {"unevaluatedProperties": False},
            "unevaluatedProperties is not supported; additionalProperties=false is",
        ),
        ({"$dynamicRef": "#a"}, "$dynamicRef is not supported"),
        ({"type": "object", "minProperties": 2}, "minProperties=2 is not supported where names are free"),
        (
            {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
            "at #/oneOf/0: a value may fulfil it and #/oneOf/1, which oneOf forbids",
        ),
        ({"oneOf": [{"pattern": r"^\w+$"}, {"pattern": "^é$"}], "type": "string"}, "which oneOf forbids"),
        ({"oneOf": [{"format": "date"}, {"format": "time"}], "type": "string"}, "which oneOf forbids"),
        ({"$ref": "http://example.com/a.json"}, "only references into the schema itself are supported"),
        ({"$ref": "file:///etc/hostname"}, "only references into the schema itself are supported"),
        ({"$ref": "#/$defs/missing"}, "$ref='#/$defs/missing': the schema has nothing there"),
        ({"$ref": "#name"}, "the schema has no such anchor"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "http://a.b/c"}}},
            "an $id below the top is not supported",
        ),
        ({"$ref": "#"}, "it refers to itself with nothing between"),
        (
            {"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": "object"},
            "no text fulfils it: the value of /next/next has to contain itself",
        ),
        ({"enum": []}, "no text fulfils it"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no text fulfils it"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no text fulfils it"),
        ({"type": "integer", "exclusiveMinimum": 2**53, "exclusiveMaximum": 2**53 + 1}, "no text fulfils it"),
        ({"type": "string", "pattern": "^a", "format": "date"}, "no text fulfils it"),
        ({"type": "string", "format": "date", "pattern": "^(1900|2023)-02-29$"}, "no text fulfils it"),
        ({"type": "string", "format": "time", "pattern": "^12:00:60Z$"}, "no text fulfils it"),
        ({"type": "string", "pattern": "(?=a)b"}, "at #/pattern: '(?=a)b' has a look-around"),
        ({"type": "string", "pattern": "(?i)a"}, "has inline flags"),
        ({"type": "string", "pattern": "a^b"}, "has an anchor inside"),
        ({"type": "string", "format": "regex"}, "format='regex' is not supported; date, date-time"),
        (
            {"type": "string", "format": "date_time"},
            "format='date_time' is no format; did you mean date-time?",
        ),
        ({"type": "number", "multipleOf": 0.3}, "multipleOf=0.3: supported are whole numbers"),
        ({"multipleOf": 0}, "multipleOf=0: must be a number above 0"),
        (
            {"allOf": [{"anyOf": [{"minimum": n + 9 * i} for n in range(4)]} for i in range(8)]},
            "alternatives",
        ),
    ],
)
def test_bad_schemas_are_named_with_the_reason(schema: Any, reason: str) -> None:
    text = json.dumps(schema)
    fault = constraint_error(None, text)
    assert fault is not None
    assert fault.startswith(f"decoding.json_schema={text!r}"[:80])
    assert reason in fault
    assert "\n" not in fault
    assert "%llguidance" not in fault


TWO = {"anyOf": [{"minimum": 1}, {"maxLength": 3}]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"allOf": [*[TWO] * 10, *[{"minimum": 1}] * 3000]},
            "too large, with its alternatives multiplied out",
        ),
        ({"oneOf": [{"minimum": i} for i in range(1000)]}, "1000 alternatives are too many"),
        ({"properties": {f"p{i}": True for i in range(1001)}}, "1001 properties; at most 1000"),
        (
            {"properties": {f"p{i}": True for i in range(900)}, "maxProperties": 50},
            "too many properties to count",
        ),
        (
            {
                "not": {"$ref": "#/$defs/a0"},
                "$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 50} for i in range(9)}
                | {"a9": {"type": "null"}},
            },
            "nested too deeply to be negated",
        ),
        ({"prefixItems": [True] * 1001}, "1001 items in prefixItems; at most 1000"),
        ({"patternProperties": {f"^{i}": True for i in range(9)}}, "9 patterns; at most 5"),
        ({"type": "array", "minItems": 2**40}, "minItems=1099511627776: at most 2147483648"),
        (
            {"type": "object", "patternProperties": {f"^{i}" + "[a-z]x" * 1800: True for i in range(5)}},
            "too large, with the combinations of its parts written out",
        ),
        (
            {"type": "object", "patternProperties": {f"(a|b)*a(a|b){{{20 + i}}}c": {} for i in range(5)}},
            "fuel",
        ),
    ],
)
def test_a_schema_of_costly_combinations_is_refused_before_they_are_made(schema: Any, reason: str) -> None:
    assert reason in (constraint_error(None, json.dumps(schema)) or "")


def test_discriminated_unions_may_be_large() -> None:
    cases = [
        {"type": "object", "properties": {"kind": {"const": f"{i}"}, "n": {}}, "required": ["kind"]}
        for i in range(200)
    ]
    assert constraint_error(None, json.dumps({"oneOf": cases})) is None


def test_all_keywords_that_are_wrong_are_told_at_once() -> None:
    schema = {"properties": {"a": {"contains": True, "minimum": "1"}, "b": {"not": 1}}}
    assert (constraint_error(None, json.dumps(schema)) or "").endswith(
        "at #/properties/a: contains is not supported; items and prefixItems are; "
        "at #/properties/a: minimum='1': must be a number; "
        "at #/properties/b: not=1: must be a schema: an object, true or false"
    )


def test_text_that_is_no_schema_is_a_fault_too() -> None:
    assert "not valid JSON" in (constraint_error(None, "{") or "")
    assert (constraint_error(None, '{"type":"x"}') or "").startswith(
        'decoding.json_schema=\'{"type":"x"}\': '
    )


def grammar(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


@pytest.mark.slow
def test_a_schema_that_takes_too_long_is_given_up_and_the_next_one_is_served() -> None:
    process = GrammarProcess(Limits(seconds=0.5, memory_bytes=1 << 30))
    assert process.tried(grammar(COSTLY)).error == "compiling it takes more than 0.5 s of processor time"
    assert process.tried(grammar({"type": "null"})).error is None
    process.close()


@pytest.mark.slow
def test_a_schema_that_takes_too_much_memory_ends_the_child_alone() -> None:
    process = GrammarProcess(Limits(seconds=60.0, memory_bytes=1 << 28))
    assert "out of memory (limit 256 MiB)" in (process.tried(grammar(MANY)).error or "")
    assert process.tried(grammar({"type": "null"})).error is None
    process.close()


def test_the_library_is_imported_only_where_a_row_asks() -> None:
    code = (
        "import sys; from mindbatch import DecodingParams; import mindbatch.engine.constraints; "
        "DecodingParams(); print('llguidance' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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
        ('{"items":' * 101 + "{}" + "}" * 101, f"nested more than {MAX_NESTING} deep"),
        ('"' + "x" * MAX_CHARACTERS + '"', f"at most {MAX_CHARACTERS} are allowed"),
        ({"description": "x" * MAX_CHARACTERS}, f"at most {MAX_CHARACTERS} are allowed"),
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        canonical_schema(given)
    assert "\n" not in str(caught.value)


def test_the_deepest_schema_that_is_allowed() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_NESTING):
        schema = {"items": schema}
    assert json.loads(canonical_schema(schema)) == schema


AGE = rf"\p{{age={'.'.join(unicodedata.unidata_version.split('.')[:2])}}}"
DIGIT, WORD = rf"[\d&&{AGE}]", rf"[[\p{{L}}\p{{N}}_]&&{AGE}]"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ab9", "ab9"),
        ("a/b é🙂", r"a\x{2f}b\x{20}\x{e9}\x{1f642}"),
        ("a|bc|", "(?:a|bc|(?:))"),
        ("(a)(?:b)(?P<name>c)", "(?:a)b(?:c)"),
        ("a*b+?c?d{2,3}e{,4}f{5}", "(?:a){0,}(?:b){1,}(?:c){0,1}(?:d){2,3}(?:e){0,4}(?:f){5,5}"),
        (".", r"[^\x{a}]"),
        ("(?s).", "(?s:.)"),
        ("(?s:.).", r"(?:(?s:.))[^\x{a}]"),
        ("[^a-c_]", r"[^a-c\x{5f}]"),
        ("[^a]", "[^a]"),
        (r"\d\w\s", rf"[{DIGIT}][{WORD}][[\s\x{{1c}}-\x{{1f}}]]"),
        (r"(?a)\d\w\s", r"[[0-9]][[0-9A-Za-z_]][[\x{20}\x{9}-\x{d}]]"),
        (r"\D[^\W\S]", rf"[[^{DIGIT}]][^[^{WORD}][^[\s\x{{1c}}-\x{{1f}}]]]"),
        ("(?i)ab(?-i:c)", "(?i:ab(?:(?-i:c)))"),
        ("(?x) a  b # note", "ab"),
        # Sets in sets are of Rust's syntax alone: to Python these are characters.
        ("[[a]&&b]", r"[\x{5b}a]\x{26}\x{26}b\x{5d}"),
        ("[a--b]", None),
        (r"\x41\u00e9\U0001f642\101", r"A\x{e9}\x{1f642}A"),
    ],
)
def test_each_construct(pattern: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="is no regular expression"):
            translated(pattern)
    else:
        assert translated(pattern).replace("(?:)", "") == expected.replace("(?:)", "")


@pytest.mark.parametrize("pattern", ["^ab$", r"\Aab\Z", "(^ab$)", "(?:^ab)$", "^(?:ab$)"])
def test_anchors_at_the_edges_change_nothing(pattern: str) -> None:
    assert re.sub(r"\(\?:|\)", "", translated(pattern)) == "ab"


def test_anchors_of_branches_stand_at_the_edges() -> None:
    assert translated("^a$|^b") == "(?:a|b)"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "is no regular expression (unterminated character set"),
        ("a{2,1}", "is no regular expression"),
        (r"\p{L}", "is no regular expression (bad escape"),
        ("a{99999999999999999999}", "repeats too often"),
        ("(" * 5000 + "a" + ")" * 5000, "nested too deeply"),
        ("(" * 61 + "a" + ")" * 61, "at most 60 levels"),
        ("a^b", "an anchor inside"),
        ("a$b", "an anchor inside"),
        ("(^a)*", "an anchor inside"),
        (r"\bword", "an anchor inside"),
        ("(?=a)b", "a look-around"),
        ("(?<!a)b", "a look-around"),
        ("(?!)", "a look-around"),
        (r"(a)\1", "a back-reference"),
        ("(a)?(?(1)b|c)", "a conditional group"),
        ("(?ai)k", "the flags a and i"),
        ("\ud800", "half a character"),
        (r"[a-\udfff]", "half a character"),
        ("a" * (MAX_REGEX_CHARACTERS + 1), f"at most {MAX_REGEX_CHARACTERS} are allowed"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        translated(pattern)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such syntax")
@pytest.mark.parametrize(
    ("pattern", "reason"), [("a++a", "a possessive repeat"), ("(?>a)", "an atomic group")]
)
def test_what_gives_nothing_back_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translated(pattern)


def test_pythons_words_and_digits_are_the_categories_that_stand_for_them() -> None:
    for code in range(0x11000):
        character, category = chr(code), unicodedata.category(chr(code))
        assert bool(re.match(r"\w", character)) == (category[0] in "LN" or character == "_")
        assert bool(re.match(r"\d", character)) == (category == "Nd")
