"""Formats are told by their templates; messages are taken apart, what is no valid call stays text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_examples import ANY_TOOLS, EXAMPLES, Example, parsed, parsed_cut

from mindbatch.message_formats import NAMES
from mindbatch.message_formats.call_text import Content, ParsedMessage, Reasoning, ToolCall
from mindbatch.message_formats.detection import detect
from mindbatch.message_formats.formats import FORMATS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.format)
def test_a_message_is_taken_apart(example: Example) -> None:
    assert parsed(example.format, example.text, in_reasoning=example.in_reasoning) == example.message


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.format)
def test_each_cut_gives_the_same_message(example: Example) -> None:
    everywhere = range(len(example.text))
    for cuts in (everywhere, *([cut] for cut in everywhere)):
        message = parsed_cut(example.format, example.text, cuts, in_reasoning=example.in_reasoning)
        assert message == example.message


def test_text_comes_as_soon_as_it_is_no_marker_and_from_the_first_call_on_at_the_end() -> None:
    parser = FORMATS["qwen3"].parser(in_reasoning=True, tools=ANY_TOOLS)
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
    message = parsed(example.format, example.text, in_reasoning=example.in_reasoning, tools=())
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


DEEP = "[" * 200 + "]" * 200
# Format, text that is no call and a part of the note.
DAMAGED = [
    ("hermes", "<tool_call>", "ends"),
    ("hermes", "<tool_call></tool_call>", "expected JSON"),
    ("hermes", "<tool_call>f()</tool_call>", "expected JSON"),
    ("hermes", '<tool_call>["f", {}]</tool_call>', "not a JSON object"),
    ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>', "Expecting ',' delimiter"),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", "within its JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "ends before </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool', "expected </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}}</tool_call>', "expected </tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "ends within its JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b}}\n</tool_call>', "within its JSON"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "no arguments"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "not a JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "not a JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "appears twice"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "no number of JSON"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate"),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": {DEEP}}}}}</tool_call>', "too deeply"),
    ("qwen3_coder", "<tool_call>\n</tool_call>", "expected <function="),
    ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>", "no name"),
    ("qwen3_coder", "<tool_call>\n<function=f\n</function>\n</tool_call>", "expected >"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>", "ends before </parameter>"),
    (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "duplicate argument",
    ),
    ("glm4", "<tool_call>\n</tool_call>", "no name"),
    ("glm4", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>", "expected <arg_value>"),
    ("glm4", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>", "ends before </tool_call>"),
    ("deepseek", "<｜tool▁calls▁begin｜>none", "expected <｜tool▁call▁begin｜>"),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>", "expected ```json"),
    ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "ends before <｜tool▁call▁end｜>"),
    ("deepseek", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>", "no name"),
    ("llama3", '{"name": "f"}', "no parameters"),
    ("llama3", '{"name": "f", "parameters": {}, "arguments": {}}', "parameters and arguments"),
    ("llama3", '{"name": "f", "parameters": {}} is the call', "text follows"),
    ("llama3", '<|python_tag|>brave_search.call(query="tides")', "expected JSON"),
    ("mistral", "[TOOL_CALLS]", "ends before"),
    ("mistral", "[TOOL_CALLS][]", "empty"),
    ("mistral", "[TOOL_CALLS][1]", "not a JSON object"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]', "no arguments"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1', "ends within its JSON"),
    ("mistral", "[TOOL_CALLS][ARGS]{}", "Expecting value"),
    ("mistral", "[TOOL_CALLS] {}", "no name"),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{} done", "text follows"),
    ("gpt_oss", "<|channel|>commentary to=functions.<|message|>{}", "no name"),
    ("gpt_oss", "<|channel|>analysis to=browser.search<|message|>{}", "browser.search is not an offered"),
    (
        "gpt_oss",
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}",
        "not a message of the",
    ),
    ("gpt_oss", "<|channel|>thoughts<|message|>hm", "its channel must be"),
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


REST = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
ONE = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TRACES = [
    ("qwen3_coder", "Looking.\n\n" + REST, "'<function=f>"),
    ("hermes", '{"name": "f", "arguments": {}}\n</tool_call>', "'</tool_call>'"),
    ("glm4", "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "'<arg_key>"),
    ("kimi_k2", "functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "'<|tool_call_arg"),
    ("lfm2", "[f()]<|tool_call_end|>", "'<|tool_call_end|>'"),
    ("deepseek_v32", '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>', "'<｜DSML｜invoke"),
    ("mistral", "f[ARGS]{}", "'[ARGS]"),
]


@pytest.mark.parametrize(("name", "text", "shown"), TRACES)
def test_a_call_whose_beginning_is_missing_stays_text_with_one_note(name: str, text: str, shown: str) -> None:
    message = parsed_cut(name, text, range(len(text)))
    assert (message.content, message.tool_calls) == (text, ())
    [note] = message.notes
    assert note.startswith(shown)
    assert note.endswith(f"stays text: no {FORMATS[name].calls[0]} before it")
    assert parsed(name, text, tools=()) == replace(message, notes=())


def test_traces_of_a_call_are_noted_after_another_and_not_for_a_broken_one_again() -> None:
    message = parsed("hermes", f'{ONE}\n{{"name": "g"}}</tool_call>\n{ONE} and </tool_call>')
    assert len(message.tool_calls) == len(message.notes) == 2
    assert len(parsed("qwen3_coder", f"<tool_call>\nf\n{REST}").notes) == 1


def test_markers_that_are_special_tokens_are_kept_as_text_and_so_are_the_ends() -> None:
    hermes = FORMATS["hermes"]
    assert hermes.with_special_tokens(["<s>", "</s>"], ["</s>"]) is hermes
    special = hermes.with_special_tokens(["<tool_call>", "</s>"], ["</s>"])
    assert special.needs_special_tokens
    parser = special.parser(in_reasoning=False, tools=ANY_TOOLS)
    message = ParsedMessage.from_segments(parser.push(f"Hi {ONE}</s>") + parser.finish())
    assert (message.content, len(message.tool_calls)) == ("Hi ", 1)
    assert FORMATS["llama3"].with_special_tokens([], ["<end>"]).end_tokens[-1] == "<end>"


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


# Parts of the models' chat templates, as the files have them.
TEMPLATES = [
    (
        "qwen3",
        r"""{{- '\n<think>\n' + reasoning_content }}{{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}""",
    ),
    (
        "qwen3",
        r"""{{- "<think>\n" }}...<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json>}""",
    ),
    (
        "hermes",
        r"""{{- "<tool_call>\n{\"arguments\": <args-dict>, \"name\": <function-name>}\n</tool_call>" }}""",
    ),
    ("hermes", '<tool_call>\n{"name": <function-name>, "arguments": <args-dict>}\n</tool_call>'),
    ("qwen3_coder", r"""{{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}"""),
    ("qwen3_coder", r"""<think>{{- '<tool_call>\n<function=example_function_name>\n<parameter=a>' }}"""),
    ("deepseek", "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'}}</think>"),
    ("glm4", "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n{{ '\\n<think></think>' }}"),
    ("llama3", """{{- '<|header_start|>assistant' }}{{- '{"name": "' }}{{- '"parameters": ' }}"""),
    ("llama3", """{{- '<|start_header_id|>assistant' }}{{- '{"name": "' }}{{- '"parameters": ' }}"""),
    ("mistral", """{{- "[TOOL_CALLS]" + tool["name"] + "[ARGS]" + arguments }}"""),
    ("gpt_oss", '{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}'),
    (None, "{{ message.content }}"),
    (None, "<|im_start|>{{ message.role }}<|im_end|>"),
    (None, "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>' }}"),
    ("seed_oss", "<seed:tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"),
    ("hunyuan", "<think> <tool_calls><tool_call>name\n```json"),
    ("granite", "respond only with <|tool_call|> followed by a JSON list of tools used"),
    ("granite", "{{- '<|tool|>' }}{{- tools | tojson }}{{- '<|/tool|>' }}"),
    ("glm", "[gMASK]<sop>{%- if tools -%}<|system|>\n# 可用工具{%- endif -%} <|observation|>"),
    ("lfm2", """{{- "List of tools: <|tool_list_start|>[" }}"""),
    ("lfm2", """{%- set ns.system_prompt = "List of tools: [" -%}"""),
]


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_a_format_is_told_by_its_template(name: str | None, template: str) -> None:
    message_format = detect(template)
    assert (message_format and message_format.name) == name


@pytest.mark.parametrize(
    ("name", "prompt_end", "expected"),
    [
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "Say <think><|im_end|>\n<|im_start|>assistant\n", False),
        ("qwen3_coder", "<|im_start|>assistant\n<think>\n", True),
        ("deepseek", "<｜Assistant｜><think>", True),
        ("deepseek", "<｜Assistant｜></think>", False),
        ("glm4", "<|assistant|>", False),
        ("glm4", "<|assistant|>\n<think></think>", False),
        ("mistral", "[/INST][THINK]", True),
        ("gpt_oss", "<|start|>assistant", False),
        ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", True),
        ("hermes", "<|im_start|>assistant\n<think>\n", False),
        ("llama3", "<|end_header_id|>\n\n", False),
        ("llama3", "", False),
    ],
)
def test_a_prompt_that_ends_in_an_open_tag_starts_in_reasoning(
    name: str, prompt_end: str, expected: bool
) -> None:
    assert FORMATS[name].starts_in_reasoning(prompt_end) is expected


def test_each_format_has_its_own_name_and_flags() -> None:
    assert tuple(FORMATS) == NAMES == tuple(message_format.name for message_format in FORMATS.values())
    assert {name for name in FORMATS if FORMATS[name].needs_special_tokens} == {
        *("llama3", "mistral", "gpt_oss", "kimi_k2", "lfm2", "granite", "cohere", "apertus", "gemma4"),
        *("pythonic", "gigachat", "glm"),
    }
    assert {name for name in FORMATS if not FORMATS[name].reasoning_opening} == {
        *("llama3", "hermes", "command_r", "pythonic", "gigachat", "functools", "glm"),
    }
