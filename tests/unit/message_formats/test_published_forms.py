"""Messages in the published forms of each format are taken apart, however their text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_examples import EXAMPLES, Example, parsed, parsed_cut

from mindbatch.message_formats.call_text import Content, Reasoning, ToolCall
from mindbatch.message_formats.registry import FORMATS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.format)
def test_a_message_is_taken_apart(example: Example) -> None:
    assert parsed(example.format, example.text, in_reasoning=example.in_reasoning) == example.message


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.format)
def test_each_cut_gives_the_same_message(example: Example) -> None:
    messages = [
        parsed_cut(example.format, example.text, [cut], in_reasoning=example.in_reasoning)
        for cut in range(len(example.text))
    ]
    assert messages == [example.message] * len(messages)


@given(st.sampled_from(EXAMPLES), st.data())
def test_many_cuts_give_the_same_message(example: Example, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(example.text)), max_size=40))
    message = parsed_cut(example.format, example.text, cuts, in_reasoning=example.in_reasoning)
    assert message == example.message


def test_text_comes_as_soon_as_it_is_no_marker_and_from_the_first_call_on_at_the_end() -> None:
    parser = FORMATS["qwen3"].parser(in_reasoning=True, with_tools=True)
    parts = ["Hm", "\n</thi", "nk>\n\nHi", " <tool", "box>", '<tool_call>{"name": "f", "arguments": {}}']
    assert [parser.push(part) for part in parts] == [
        [Reasoning("Hm")],
        [],
        [Content("Hi")],
        [],
        [Content(" <toolbox>")],
        [],
    ]
    assert parser.push("</tool_call>ok") == []
    assert parser.finish() == [ToolCall("f", "{}"), Content("ok")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.format)
def test_without_tools_no_call_is_looked_for_but_reasoning_is(example: Example) -> None:
    message = parsed(example.format, example.text, in_reasoning=example.in_reasoning, with_tools=False)
    assert (message.reasoning, message.tool_calls) == (example.reasoning, ())
    assert all(name in (message.content or "") for name, _ in example.calls)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_coder", "deepseek", "glm4"])
@pytest.mark.parametrize("opening", ["", "<think>", "\n<think>\n", "\n"])
def test_reasoning_that_the_prompt_opens_may_be_opened_again(name: str, opening: str) -> None:
    message = parsed(name, f"{opening}hm, <think>\n</think>\n\n<think> ok", in_reasoning=True)
    assert (message.reasoning, message.content) == ("hm, <think>", "<think> ok")


@pytest.mark.parametrize(
    ("name", "text"),
    [("qwen3", "hm\n"), ("mistral", "hm</s>"), ("gpt_oss", "hm<|end|>"), ("glm4", "hm")],
)
def test_reasoning_that_never_ends_is_reasoning(name: str, text: str) -> None:
    assert parsed(name, text, in_reasoning=True).reasoning == "hm"


@pytest.mark.parametrize("name", ["mistral", "llama3", "gpt_oss"])
def test_a_token_that_ends_the_message_is_no_text_but_followed_by_text_it_is(name: str) -> None:
    token = {"mistral": "</s>", "llama3": "<|eot_id|>", "gpt_oss": "<|return|>"}[name]
    assert parsed(name, f"a\n{token}").content == "a\n"
    assert parsed(name, f"a{token}{token}b{token}").content == f"a{token}{token}b"


@pytest.mark.parametrize(
    ("text", "content"),
    [("\n{call}\n", None), ("a \n\n{call} \n{call}\n\n", "a "), ("{call}\nb\n{call}\n c", "b\n c")],
)
def test_newlines_around_calls_are_no_content(text: str, content: str | None) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parsed("hermes", text.replace("{call}", call)).content == content
