"""What a conversation may look like."""

import pytest

from mindbatch.io.errors import PromptError
from mindbatch.prompts.messages import ROLES, checked_conversation

CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("role", ROLES)
def test_every_role(role: str):
    assert checked_conversation([{"role": role, "content": ""}]) == [{"role": role, "content": ""}]


def test_other_fields_are_kept_and_the_given_messages_untouched():
    given = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"}, CALL]
    checked = checked_conversation(given)
    assert checked == [given[0], {**CALL, "content": None}]
    assert checked[0]["content"] is not given[0]["content"]


BAD = {
    "no list": ("hello", "messages: found 'hello'; must be a list"),
    "one message": ({"role": "user", "content": "x"}, "must be a list of messages"),
    "empty": ([], "holds no message"),
    "no mapping": (["x"], r"messages\[0\]: found 'x'"),
    "no role": ([{"content": "x"}], r"messages\[0\].role: missing; must be one of system,"),
    "misspelt role": ([{"role": "asistant", "content": "x"}], "did you mean assistant"),
    "role of a wrong type": ([{"role": ["user"], "content": "x"}], r"role=\[user\]"),
    "no content": ([{"role": "user"}], r"messages\[0\].content: missing"),
    "number": ([{"role": "user", "content": 5}], r"messages\[0\].content=5"),
    "image": ([{"role": "user", "content": [{"type": "image"}]}], r"content\[0\]=.*only text"),
    "surrogate": ([{"role": "user", "content": "\ud800"}], "content: is not valid Unicode"),
    "not JSON": ([{"role": "user", "content": "x", "extra": {1, 2}}], r"messages\[0\].extra=\{1, 2\}"),
    "key": ([{"role": "user", "content": "x", "extra": {1: 2}}], "key 1 must be a string"),
    "not finite": ([{"role": "user", "content": "x", "extra": float("nan")}], r"messages\[0\].extra=nan"),
    "key of half a character": (
        [{"role": "user", "content": "x", "extra": {"\ud800": 1}}],
        "extra: key .* is not valid Unicode",
    ),
    "deep": ([{"role": "user", "content": "x", "extra": nested(65)}], "nested more than 64 deep"),
    "deeper": ([nested(10**5)], r"messages\[0\]: found list too large to be shown"),
    "huge": (10**5000, "found int too large to be shown"),
    "long": ([{"role": "x" * 500, "content": "x"}], r"role='x{50,60}\.\.\."),
}


@pytest.mark.parametrize(("messages", "said"), BAD.values(), ids=BAD)
def test_one_line_that_says_where(messages: object, said: str):
    with pytest.raises(PromptError, match=said) as caught:
        checked_conversation(messages)
    assert len(caught.value.faults) == 1
    assert "\n" not in str(caught.value)


def test_as_deep_as_allowed():
    message = {"role": "user", "content": "x", "extra": nested(62)}
    assert checked_conversation([message]) == [message]


def test_all_faults_at_once():
    with pytest.raises(PromptError) as caught:
        checked_conversation([{"role": "bot", "content": 1}, {"role": "user"}])
    assert len(caught.value.faults) == 3
