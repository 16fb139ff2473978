"""GLM-4.5 to 4.7: <tool_call>, the name, then <arg_key> and <arg_value> in turn."""

import re
from collections.abc import Iterator

from mindbatch.message_formats.call_text import BLANK, CallText, ToolCall, tagged_call
from mindbatch.message_formats.hermes import THINK, TOOL_CALL
from mindbatch.message_formats.parser import MessageFormat

_NAME = re.compile(r"[^<\n]*")


def _read_call(text: CallText) -> Iterator[ToolCall]:
    text.expect(TOOL_CALL)
    text.run(BLANK)
    name = text.run(_NAME)
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while text.accept("<arg_key>"):
        key = text.before("</arg_key>")
        text.expect("<arg_value>")
        values.append((key.strip(), text.before("</arg_value>")))
        text.run(BLANK)
    text.expect("</tool_call>")
    yield tagged_call(name, values, {})


GLM4 = MessageFormat("glm4", (TOOL_CALL,), _read_call, *THINK)
