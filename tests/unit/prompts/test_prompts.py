"""The rows of `generate`: lines, chats and ids of one source; every fault has its row."""

import io
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.prompts import prompts
from mindbatch.prompts.messages import ROLES, checked_conversation
from mindbatch.prompts.prompts import Prompt, PromptRows, read_prompts

HI = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}


def reasons(rows: PromptRows) -> dict[str, str]:
    return {error.key: error.reason for error in rows.errors}


def test_one_text_even_with_newlines():
    assert read_prompts(prompts="a\nb").prompts == [Prompt(key="0", source="prompts", text="a\nb")]


def test_json_lines(tmp_path: Path):
    rows = [
        '"Q\\nA"',
        "[1, 2]",
        '{"id": 1, "prompt": "a"}',
        '{"text": "b"}',
        '{"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f"}], '
        '"chat_template_kwargs": {"x": 1}}',
        '{"conversations": [{"from": "human", "value": "hi"}]}',
        '{"question": "a", "answer": "b"}',
        "three plus four is",
        "5",
        "",
        '{"a": 1, "a": 2}',
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(rows) + "\n")
    found = read_prompts(prompts_file=path, chat_template_kwargs={"x": 0, "y": 2}, date="2026-07-31")
    assert [prompt.text or prompt.token_ids for prompt in found.prompts[:4]] == ["Q\nA", [1, 2], "a", "b"]
    chat, turns = found.prompts[4:]
    assert chat == Prompt(
        key="4",
        source=f"{path}:5",
        messages=[HI],
        tools=[{"name": "f"}],
        chat_template_kwargs={"x": 1, "y": 2},
        date="2026-07-31",
    )
    assert turns.messages == [HI]
    said = reasons(found)
    assert "found an object with [question, answer]; must have one of prompt, messages" in said["6"]
    assert "mindbatch batch" in said["6"]
    assert "not valid JSON: Expecting value at character 0; a line must be a quoted text" in said["7"]
    assert "found 5; must be a text" in said["8"]
    assert said["9"] == "the line is empty"
    assert "appears twice" in said["10"]
    assert [error.source for error in found.errors] == [f"{path}:{n}" for n in range(7, 12)]


def test_a_file_of_which_no_line_can_be_run_is_refused(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a"}\n' * 2000 + "{\n" + '{"question": "a"}\n' * 2)
    with pytest.raises(ConfigError) as refused:
        read_prompts(prompts_file=path)
    first, second, none = refused.value.lines
    assert first.startswith(f"{path}:1: found an object with [question]; must have one of prompt")
    assert second.startswith(f"{path}:2001: not valid JSON")
    assert none == f"prompts_file={path}: none of its 2,003 lines can be run"


def test_a_file_of_ever_more_bad_lines_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MAX_ERRORS", 3)
    path = tmp_path / "p.txt"
    path.write_text("a\n\n\n\nb\n")
    assert len(read_prompts(prompts_file=path).errors) == 3
    path.write_text("a\n\n\n\nb\n\n")
    with pytest.raises(ConfigError) as caught:
        read_prompts(prompts_file=path)
    assert caught.value.lines == (
        f"prompts_file={path}: more than 3 lines are invalid ({path}:6: the line is empty); mindbatch batch "
        "allows more with data.max_errors",
    )


def test_a_line_of_json_has_one_prompt(tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"text": "a", "prompt": "b"}\n{"text": "a", "prompt": null}\n{"messages": [], "text": "a"}'
    )
    found = read_prompts(prompts_file=path)
    assert [prompt.text for prompt in found.prompts] == ["a"]
    said = reasons(found)
    assert said["0"].startswith("prompt and text: only one of them can be the prompt; remove the others")
    assert said["2"].startswith("messages and text: only one")


def test_one_message_is_a_conversation():
    assert read_prompts(messages=HI).prompts[0].messages == [HI]


def test_standard_input():
    rows = read_prompts(prompts_file="-", stdin=io.BytesIO(b"a\n\nb"))
    assert [(p.key, p.source) for p in rows.prompts] == [("0", "standard input:1"), ("2", "standard input:3")]
    assert rows.errors[0].source == "standard input:2"


def test_messages():
    one = read_prompts(messages=[SYSTEM, HI])
    assert [(p.source, p.messages) for p in one.prompts] == [("messages", [SYSTEM, HI])]
    two = read_prompts(messages=[[HI], [SYSTEM, HI]], chat=True)
    assert [(p.key, p.source) for p in two.prompts] == [("0", "messages[0]"), ("1", "messages[1]")]


def test_two_system_messages_are_refused():
    rows = read_prompts(messages=[SYSTEM, HI], system="be brief")
    assert "a system message already exists" in reasons(rows)["0"]


USAGE: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "no prompt given; exactly one of prompts, prompts_file, messages is needed"),
    "two": ({"prompts": "a", "messages": [HI]}, "prompts and messages given; exactly one of"),
    "number": ({"prompts": 5}, "prompts=5: must be a text"),
    "mapping": ({"prompts": {"a": 1}}, "prompts=.*must be a text"),
    "empty list": ({"prompts": []}, "empty; must have a prompt"),
    "flat ids": ({"prompts": [1, 2]}, r"write \[\[1, 2\]\]"),
    "system alone": ({"prompts": "a", "system": "x"}, "system has no effect without chat=true"),
    "tools alone": ({"prompts": "a", "tools": [{"name": "f"}]}, "tools has no effect without chat=true"),
    "bad tools": ({"messages": [HI], "tools": [1]}, r"tools=\[1\]: must be a list of JSON objects"),
    "variables": ({"messages": [HI], "chat_template_kwargs": 1}, "chat_template_kwargs=1: must be a mapping"),
    "empty system": ({"prompts": "a", "chat": True, "system": ""}, "system is empty"),
    "messages text": ({"messages": "hi"}, "messages='hi': must be a list"),
    "no messages": ({"messages": []}, "empty; must have a message"),
    "empty file": ({"prompts_file": "-", "stdin": io.BytesIO()}, "standard input is empty"),
    "no file": ({"prompts_file": "no/such"}, "prompts_file=no/such: cannot be read: No such file"),
    "folder": ({"prompts_file": "/"}, "cannot be read: Is a directory"),
}


@pytest.mark.parametrize(("arguments", "said"), USAGE.values(), ids=USAGE)
def test_usage_errors(arguments: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        read_prompts(**arguments)
    assert len(caught.value.lines) == 1


def test_all_usage_errors_at_once():
    with pytest.raises(ConfigError) as caught:
        read_prompts(system="")
    assert len(caught.value.lines) == 3


def calling(arguments: object) -> list[object]:
    return [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]


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
    assert checked == [given[0], CALL]
    assert checked[0]["content"] is not given[0]["content"]


BAD = {
    "no list": ("hello", "messages: found 'hello'; must be a list"),
    "one message": ({"role": "user", "content": "x"}, "must be a list of messages"),
    "empty": ([], "empty; must have a message"),
    "no mapping": (["x"], r"messages\[0\]: found 'x'"),
    "no role": ([{"content": "x"}], r"messages\[0\].role: missing; must be one of system,"),
    "misspelt role": ([{"role": "asistant", "content": "x"}], "did you mean assistant"),
    "role of a wrong type": ([{"role": ["user"], "content": "x"}], r"role=\[user\]"),
    "no content": ([{"role": "user"}], r"messages\[0\].content: missing"),
    "null": ([{"role": "user", "content": None}], r"messages\[0\].content=null; must be a string"),
    "calls of a wrong type": ([{"role": "assistant", "tool_calls": "f"}], r"tool_calls='f': must be a list"),
    "call of a wrong type": ([{"role": "assistant", "tool_calls": ["f"]}], r"tool_calls\[0\]='f': must be"),
    "function of a wrong type": (
        [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
        r"tool_calls\[0\].function='f': must be a mapping with name and arguments",
    ),
    "arguments cut short": (calling('{"a": '), r"function.arguments='.*': not valid JSON: .* character 6"),
    "arguments that are no object": (calling("[1]"), r"arguments='\[1\]': must be a JSON object, or the"),
    "arguments of a wrong type": (calling(5), r"arguments=5: must be a JSON object, or the text of one"),
    "arguments with a surrogate": (calling('{"a": "\\ud800"}'), r"arguments.a: is not valid Unicode"),
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
    "deeper": ([nested(10**5)], r"messages\[0\]: found \[{57}\.\.\.; must be a mapping"),
    "huge": (10**5000, "found int too large to be shown"),
    "long": ([{"role": "x" * 500, "content": "x"}], r"role='x{50,60}\.\.\."),
}


@pytest.mark.parametrize(("messages", "said"), BAD.values(), ids=BAD)
def test_one_line_that_says_where(messages: object, said: str):
    with pytest.raises(PromptError, match=said) as caught:
        checked_conversation(messages)
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)


def test_as_deep_as_allowed():
    message = {"role": "user", "content": "x", "extra": nested(62)}
    assert checked_conversation([message]) == [message]


def test_what_is_null_in_a_message_is_absent_and_arguments_stay_as_they_are():
    call = {
        "id": None,
        "type": "function",
        "function": {"name": "f", "arguments": '{"x": null}', "strict": None},
    }
    sent = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    checked = checked_conversation([sent])
    function = {"name": "f", "arguments": '{"x": null}'}
    assert checked == [{"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}]
    assert checked_conversation(checked) == checked
    parts = [{"type": "text", "text": "a", "image_url": None}]
    assert checked_conversation([{"role": "user", "content": parts}])[0]["content"] == [
        {"type": "text", "text": "a"}
    ]


@pytest.mark.parametrize("calls", [None, []])
def test_an_answer_without_anything_is_an_empty_text(calls: object):
    sent = {"role": "assistant", "content": None, "tool_calls": calls}
    assert checked_conversation([sent]) == [{"role": "assistant", "content": ""}]


def test_all_faults_at_once():
    with pytest.raises(PromptError) as caught:
        checked_conversation([{"role": "bot", "content": 1}, {"role": "user"}])
    assert len(caught.value.lines) == 3
