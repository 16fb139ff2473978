"""Formats are told by their templates, and open reasoning by the end of a prompt."""

import pytest

from mindbatch.message_formats import NAMES
from mindbatch.message_formats.registry import FORMATS, begins_in_reasoning, detect

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
    ("llama3", """{{- '<|start_header_id|>assistant' }}{{- '{"name": "' }}{{- '"parameters": ' }}"""),
    ("mistral", """{{- "[TOOL_CALLS]" + tool["name"] + "[ARGS]" + arguments }}"""),
    ("gpt_oss", '{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}'),
    (None, "{{ message.content }}"),
    (None, "<|im_start|>{{ message.role }}<|im_end|>"),
    (None, "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>' }}"),
    (None, "<seed:tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"),
    (None, "<think> <tool_calls><tool_call>name\n```json"),
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
def test_a_prompt_that_ends_in_an_open_tag_begins_in_reasoning(
    name: str, prompt_end: str, expected: bool
) -> None:
    assert begins_in_reasoning(FORMATS[name], prompt_end) is expected


def test_each_format_has_its_own_name_and_flags() -> None:
    assert all(message_format.name == name for name, message_format in FORMATS.items())
    assert {name for name in FORMATS if FORMATS[name].needs_special_tokens} == {
        "llama3",
        "mistral",
        "gpt_oss",
    }
    assert {name for name in FORMATS if not FORMATS[name].reasoning_opening} == {"llama3", "hermes"}


def test_choices_of_configurations_are_the_formats() -> None:
    assert tuple(FORMATS) == NAMES
