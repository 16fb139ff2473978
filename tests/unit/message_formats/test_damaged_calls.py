"""What is no valid call stays text, exactly as it was generated, with a note that says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_examples import EXAMPLES, Example, parsed, parsed_cut

from mindbatch.message_formats.call_text import ToolCall

DEEP = "[" * 200 + "]" * 200
# Format, text that is no call and a part of the note.
DAMAGED = [
    ("hermes", "<tool_call>", "ends"),
    ("hermes", "<tool_call></tool_call>", "no JSON"),
    ("hermes", "<tool_call>f()</tool_call>", "no JSON"),
    ("hermes", '<tool_call>["f", {}]</tool_call>', "no JSON"),
    ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>', "Expecting ',' delimiter"),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", "within its JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "ends before </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool', "no </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}}</tool_call>', "no </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "ends within its JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b}}\n</tool_call>', "within its JSON"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "no arguments"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "no JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "no JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "appears twice"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "no number of JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate"),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": {DEEP}}}}}</tool_call>', "too deeply"),
    ("qwen3_coder", "<tool_call>\n</tool_call>", "no <function="),
    ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>", "no name"),
    ("qwen3_coder", "<tool_call>\n<function=f\n</function>\n</tool_call>", "no >"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>", "ends before </parameter>"),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "comes twice",
    ),
    ("glm4", "<tool_call>\n</tool_call>", "no name"),
    ("glm4", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>", "no <arg_value>"),
    ("glm4", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>", "ends before </tool_call>"),
    ("deepseek", "<｜tool▁calls▁begin｜>none", "no <｜tool▁call▁begin｜>"),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>", "no ```json"),
    ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "ends before <｜tool▁call▁end｜>"),
    ("deepseek", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>", "no name"),
    ("llama3", '{"name": "f"}', "no parameters"),
    ("llama3", '{"name": "f", "parameters": {}, "arguments": {}}', "parameters and arguments"),
    ("llama3", '{"name": "f", "parameters": {}} is the call', "text follows"),
    ("llama3", '<|python_tag|>brave_search.call(query="tides")', "no JSON"),
    ("mistral", "[TOOL_CALLS]", "ends before"),
    ("mistral", "[TOOL_CALLS][]", "empty"),
    ("mistral", "[TOOL_CALLS][1]", "no JSON object"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]', "no arguments"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1', "ends within its JSON"),
    ("mistral", "[TOOL_CALLS][ARGS]{}", "Expecting value"),
    ("mistral", "[TOOL_CALLS] {}", "no name"),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{} done", "text follows"),
    ("gpt_oss", "<|channel|>commentary to=functions.<|message|>{}", "no name"),
    ("gpt_oss", "<|channel|>analysis to=browser.search<|message|>{}", "browser.search is no tool"),
    ("gpt_oss", "<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}", "no message of the"),
    ("gpt_oss", "<|channel|>thoughts<|message|>hm", "its channel is none"),
    ("gpt_oss", "<|channel|>analysis<|channel|>final<|message|>hm", "ends its header"),
]


@pytest.mark.parametrize(("name", "text", "reason"), DAMAGED)
def test_what_is_no_call_stays_text_with_a_note(name: str, text: str, reason: str) -> None:
    message = parsed(name, text)
    assert (message.content, message.reasoning, message.tool_calls) == (text, None, ())
    assert len(message.notes) == 1
    assert reason in message.notes[0]
    assert "\n" not in message.notes[0]
    assert len(message.notes[0]) < 200


@given(st.sampled_from(DAMAGED), st.data())
def test_each_cut_of_it_gives_the_same_message(damaged: tuple[str, str, str], data: st.DataObject) -> None:
    name, text, _ = damaged
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    assert parsed_cut(name, text, cuts) == parsed(name, text)


@pytest.mark.parametrize("name", ["mistral", "llama3"])
def test_the_last_token_is_no_text_of_a_broken_call_either(name: str) -> None:
    text = {"mistral": '[TOOL_CALLS]f[ARGS]{"a": "b', "llama3": '{"name": "f'}[name]
    assert parsed(name, text + {"mistral": "</s>", "llama3": "<|eot_id|>"}[name]).content == text


@pytest.mark.parametrize(
    "broken", ["<tool_call>", '<tool_call>{"name": ', "<tool_call>\n{'a'}\n</tool_call>"]
)
def test_a_broken_call_swallows_no_call_after_it(broken: str) -> None:
    message = parsed("hermes", f'{broken}\n<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>')
    assert (message.content, message.tool_calls) == (broken, (ToolCall("f", "{}"),))
    assert len(message.notes) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", '"007"'),
        ("1.50", "1.50"),
        ("NaN", '"NaN"'),
        ('{"a": 1, "a": 2}', '"{\\"a\\": 1, \\"a\\": 2}"'),
        ("null", "null"),
        ("True", '"True"'),
        (" x ", '" x "'),
    ],
)
def test_values_between_tags_are_json_only_where_they_are_strictly_json(text: str, value: str) -> None:
    call = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    assert parsed("glm4", call).tool_calls == (ToolCall("f", f'{{"a": {value}}}'),)


@given(st.sampled_from([example for example in EXAMPLES if example.calls]), st.data())
def test_a_text_cut_short_has_no_call_that_was_not_generated(example: Example, data: st.DataObject) -> None:
    text = example.text[: data.draw(st.integers(0, len(example.text)))]
    calls = parsed(example.format, text, in_reasoning=example.in_reasoning).tool_calls
    assert calls == example.message.tool_calls[: len(calls)]
