"""Arguments that come as text are what the tools' schemas say, and what they look like without one."""

import json
from typing import Any

import pytest
from message_examples import parsed
from written_messages import written

STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
LIKE_JSON = ["90210", "02134", "true", "True", "null", "None", "1e5", '{"a": 1}', "[1]", '"q"', " x ", ""]
DEFS = {
    "$defs": {"zip": STRING, "num": {"$ref": "#/$defs/more"}, "more": {"$anchor": "n", "type": "integer"}}
}


def _argument(text: str, schema: Any, format: str = "glm4", **parameters: Any) -> Any:
    """An argument that is written as a text, read with the schema of it."""
    parameters = {"type": "object", "properties": {"a": schema}, **parameters}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    message = parsed(
        format, written(format, content="", reasoning="", calls=[("f", {"a": text})]), tools=tools
    )
    [call] = message.tool_calls
    return json.loads(call.arguments)["a"]


TEXTS = {
    "type": STRING,
    "list of one type": {"type": ["string"]},
    "enum": {"enum": [*LIKE_JSON, 7]},
    "const and type": {"type": "string", "const": "x"},
    "reference": {"$ref": "#/$defs/zip"},
    "all of": {"allOf": [{}, {"$ref": "#/$defs/zip"}]},
    "any of the same": {"anyOf": [STRING, {"$ref": "#/$defs/zip"}]},
}


@pytest.mark.parametrize("text", LIKE_JSON)
@pytest.mark.parametrize("schema", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("format", ["glm4", "qwen3_coder", "seed_oss", "minimax_m2"])
def test_what_the_schema_calls_a_text_is_one(format: str, schema: Any, text: str) -> None:
    assert _argument(text, schema, format, **DEFS) == text


TYPED = [
    ("2", INTEGER, 2),
    (" 2\n", INTEGER, 2),
    ("+2", INTEGER, 2),
    ("007", INTEGER, 7),
    ("two", INTEGER, "two"),
    ("2.5", INTEGER, "2.5"),
    (".5", {"type": "number"}, 0.5),
    ("2", {"type": "number"}, 2),
    ("NaN", {"type": "number"}, "NaN"),
    ("True", {"type": "boolean"}, True),
    ("1", {"type": "boolean"}, "1"),
    ("None", NULL, None),
    ("['a', None]", {"type": "array"}, ["a", None]),
    ("{'a': (1, True)}", {"type": "object"}, {"a": [1, True]}),
    ("[1, 2", {"type": "array"}, "[1, 2"),
    ("2", {"$ref": "#/$defs/num"}, 2),
    ("x", {"$ref": "#/$defs/num"}, "x"),
    ("2", {"$ref": "#n"}, 2),
    ("90210", {"anyOf": [STRING, NULL]}, "90210"),
    ("null", {"anyOf": [STRING, NULL]}, None),
    ('"q"', {"anyOf": [STRING, NULL]}, '"q"'),
    ('"q"', {}, "q"),
    ("null", {"type": "string", "nullable": True}, None),
    ("true", {"oneOf": [{"type": "boolean"}, STRING]}, True),
    ("yes", {"oneOf": [{"type": "boolean"}, STRING]}, "yes"),
    ("2", {"type": ["integer", "string"]}, 2),
    ("2", {"enum": ["1", "2"]}, "2"),
    ("2", {"enum": [1, 2, "x"]}, 2),
    ("2", {"type": ["integer", "string"], "enum": [1, "2"]}, "2"),
    ("2", {"anyOf": [{"enum": ["2"]}, INTEGER]}, "2"),
    ("3", {"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, 3),
    ("2", {}, 2),
    ("02134", {}, "02134"),
    ("2", {"anyOf": [{}, STRING]}, 2),
    ("2", {"$ref": "#/$defs/absent"}, 2),
    ("2", {"$ref": "#/properties/a"}, 2),
    ("2", {"type": "whole"}, 2),
    ("2", {"type": "str"}, "2"),
    ("2", {"type": "STRING"}, "2"),
    ("2", True, 2),
]


@pytest.mark.parametrize(("text", "schema", "value"), TYPED)
def test_a_text_is_of_the_type_that_the_schema_says(text: str, schema: Any, value: Any) -> None:
    result = _argument(text, schema, **DEFS)
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {}, "additionalProperties": STRING},
        {"properties": {}, "$ref": "#/$defs/all", "$defs": {"all": {"properties": {"a": STRING}}}},
        {"properties": {}, "allOf": [{"properties": {"a": STRING}}]},
        {"properties": {}, "anyOf": [{"properties": {"a": STRING}}, {"properties": {"b": INTEGER}}]},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": STRING}, "allOf": [{"$ref": "#"}]},
        {
            "$id": "https://e.org/f",
            "properties": {"a": {"$ref": "https://e.org/f#/properties/b"}, "b": STRING},
        },
    ],
)
def test_a_property_is_looked_for_wherever_a_schema_may_declare_it(parameters: dict[str, Any]) -> None:
    assert _argument("2", {}, **parameters) == "2"


@pytest.mark.parametrize("key", ["allOf", "anyOf"])
def test_a_schema_of_a_thousand_references_is_no_danger(key: str) -> None:
    names = range(3000)
    chain = {str(number): {key: [{"$ref": f"#/$defs/{number + 1}"}]} for number in names}
    assert _argument("2", {"$ref": "#/$defs/0"}, **{"$defs": chain}) == 2
    wide = {str(number): {key: [{"$ref": f"#/$defs/{other}"} for other in range(40)]} for number in range(40)}
    assert _argument("2", {"$ref": "#/$defs/0"}, **{"$defs": wide, "allOf": [{"$ref": "#/$defs/0"}]}) == 2


@pytest.mark.parametrize("tools", [[{}], [{"type": "function", "function": {"name": "g"}}], ["f", 1]])
def test_without_a_schema_a_text_is_what_it_looks_like(tools: list[Any]) -> None:
    text = written("glm4", content="", reasoning="", calls=[("f", {"a": "2", "b": "02"})])
    assert parsed("glm4", text, tools=tools).tool_calls[0].arguments == '{"a": 2, "b": "02"}'


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(a='it's 5 o'clock', b=\"x\\n\\u00e9\")", {"a": "it's 5 o'clock", "b": "x\né"}),
        ("f(a=90210, b=true)", {"a": "90210", "b": True}),
        ('f(a="1", b="True", c="[1, 2]")', {"a": "1", "b": True, "c": [1, 2]}),
        ("f(c=(1, {'k': None}), a='')", {"c": [1, {"k": None}], "a": ""}),
    ],
)
def test_python_values_are_as_templates_write_them(text: str, arguments: dict[str, Any]) -> None:
    properties = {
        "a": STRING,
        "b": {"type": ["boolean", "string"][: 1 + ("x" in text)]},
        "c": {"type": "array"},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    [call] = parsed("pythonic", f"[{text}]", tools=tools).tool_calls
    assert json.loads(call.arguments) == arguments
