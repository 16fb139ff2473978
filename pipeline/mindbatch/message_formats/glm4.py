"""GLM-4.5 to 4.7: <tool_call>, the name, then <arg_key> and <arg_value> in turn."""

import re

from mindbatch.message_formats.hermes import THINK
from mindbatch.message_formats.json_calls import tagged_call
from mindbatch.message_formats.message_reading import HandOver, TaggedSyntax
from mindbatch.message_formats.reader import BLANK, PushedText, Steps

_NAME = re.compile(r"[^<\n]*")


def _read_call(reader: PushedText, hand_over: HandOver) -> Steps[None]:
    yield from reader.run(BLANK)
    name = yield from reader.run(_NAME)
    values: list[tuple[str, str]] = []
    yield from reader.run(BLANK)
    while (yield from reader.accept("<arg_key>")):
        key = yield from reader.text_before("</arg_key>")
        yield from reader.expect("<arg_value>")
        values.append((key.strip(), (yield from reader.text_before("</arg_value>"))))
        yield from reader.run(BLANK)
    yield from reader.expect("</tool_call>")
    hand_over(tagged_call(name, values, {}))


GLM4 = TaggedSyntax({"<tool_call>": _read_call}, reasoning=THINK)
