"""Reads calls whose arguments are text between tags; the tools' schemas determine their types."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mindbatch.message_formats.argument_types import ANY, TEXT, json_call, type_of
from mindbatch.message_formats.call_text import BLANK, CallText, ToolCall

_IN_TAG = re.compile(r"[^<>\n\"]*")
_LINE = re.compile(r"[^<\n]*")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's constants, which Qwen's templates and therefore its models write."""
BY_SCHEMA, AS_TEXT, AS_JSON = "schema", "text", "JSON"


@dataclass(frozen=True)
class TaggedCalls:
    """Reads functions with parameters in tags, within a tag around one call or around all.

    tag: markers before and after the calls.
    function: markers before the function's name, after it, and after the call.
    parameter: markers before a parameter's name and after its value.
    name_ends: the markers that may follow a parameter's name, with how its value is then read.
    padding: text around a value, which is dropped.
    words: JSON by values that are not JSON themselves.
    """

    tag: tuple[str, str]
    function: tuple[str, str, str]
    parameter: tuple[str, str]
    name_ends: Mapping[str, str]
    padding: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: CallText) -> Iterator[ToolCall]:
        text.expect(self.tag[0])
        calls = [self._call(text)]
        text.run(BLANK)
        while text.upcoming(self.function[0]):
            calls.append(self._call(text))
            text.run(BLANK)
        text.expect(self.tag[1])
        yield from calls

    def _call(self, text: CallText) -> ToolCall:
        before, after, end = self.function
        text.expect(before)
        name = text.run(_IN_TAG)
        text.expect(after)
        values: list[tuple[str, str]] = []
        text.run(BLANK)
        while text.accept(self.parameter[0]):
            values.append(self._value(text, name))
            text.run(BLANK)
        text.expect(end)
        return json_call(name, values)

    def _value(self, text: CallText, function: str) -> tuple[str, str]:
        key = text.run(_IN_TAG)
        name_end = text.accept(*self.name_ends)
        if not name_end:
            text.expect(next(iter(self.name_ends)))
        value = text.before(self.parameter[1]).removeprefix(self.padding).removesuffix(self.padding)
        types = {AS_TEXT: TEXT, AS_JSON: ANY}
        type = types.get(self.name_ends[name_end]) or type_of(text, function, key)
        return key, type.json_of(value, self.words)


DSML_TAGS = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")


def dsml_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads the calls of DeepSeek V3.2 and V4, whose parameters are marked as string or not."""
    tag = text.upcoming(*DSML_TAGS) or DSML_TAGS[0]
    reader = TaggedCalls(
        (tag, f"</{tag[1:]}"),
        ('<｜DSML｜invoke name="', '">', "</｜DSML｜invoke>"),
        ('<｜DSML｜parameter name="', "</｜DSML｜parameter>"),
        {'" string="true">': AS_TEXT, '" string="false">': AS_JSON, '">': BY_SCHEMA},
    )
    yield from reader(text)


def glm_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads the name, then pairs of <arg_key> and <arg_value>."""
    text.expect("<tool_call>")
    text.run(BLANK)
    name = text.run(_LINE).strip()
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while text.accept("<arg_key>"):
        key = text.before("</arg_key>").strip()
        text.expect("<arg_value>")
        values.append((key, type_of(text, name, key).json_of(text.before("</arg_value>"), {})))
        text.run(BLANK)
    text.expect("</tool_call>")
    yield json_call(name, values)
