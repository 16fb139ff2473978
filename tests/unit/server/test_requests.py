"""Bodies of requests: what they hold is counted before work begins."""

import pytest

from mindbatch.io.errors import PromptError
from mindbatch.io.strict_json import parts_error
from mindbatch.prompts.messages import MAX_MESSAGES, MAX_TOOLS, NO_OPTIONS, checked_conversation
from mindbatch.server.requests import MAX_CONTAINERS, MAX_KEYS, ApiError, _object_in
from mindbatch.server.responses import chat_body

MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"messages": [' + b"{}," * 50_000 + b"{}]}", "50003 lists and objects; at most 50000"),
        (b'{"prompt": [' + b"[]," * 50_000 + b"[]]}", "50003 lists and objects; at most 50000"),
        (b'{"prompt": [' + b"1," * 1_000_000 + b"1]}", "1000002 lists, objects and commas; at most 1000000"),
        (b'{"a":{' + b",".join(b'"%d":1' % n for n in range(200_000)) + b"}}", "200001 keys and texts"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(201)) + b"}", "201 keys; at most 200"),
    ],
)
def test_bodies_of_too_many_parts(body: bytes, error: str) -> None:
    with pytest.raises(ApiError, match=error):
        _object_in(body)


def test_marks_in_texts_are_no_parts() -> None:
    text = b'[{,\\"\\\\' * 400_000
    assert _object_in(b'{"prompt": "' + text + b'"}')["prompt"] == '[{,"\\' * 400_000
    assert parts_error(b'"' + text + b'"', MAX_CONTAINERS, 1) is None
    assert parts_error(b'"' + text + b'"' + b"[" * 50_001, MAX_CONTAINERS) is not None
    assert len(_object_in(b"{" + b",".join(b'"%d":1' % n for n in range(MAX_KEYS)) + b"}")) == MAX_KEYS


def test_conversations_and_tools_have_an_end() -> None:
    with pytest.raises(PromptError, match="messages: has 20001 messages; at most 20000"):
        checked_conversation([MESSAGE] * (MAX_MESSAGES + 1))
    with pytest.raises(PromptError, match="has 20001 parts"):
        checked_conversation([{**MESSAGE, "content": [1] * (MAX_MESSAGES + 1)}])
    with pytest.raises(PromptError, match="tools: has 2001 tools; at most 2000"):
        NO_OPTIONS.of_row([{"a": 1}] * (MAX_TOOLS + 1), None, "tools", "kwargs")
    for name, item, count in (("input", MESSAGE, MAX_MESSAGES), ("tools", {}, MAX_TOOLS)):
        with pytest.raises(ApiError, match=f"{name}: has {count + 1} items; at most {count}"):
            chat_body({"input": "a", name: [item] * (count + 1)}, [])
