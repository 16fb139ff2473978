"""No text makes a parser raise, lose characters, or depend on cuts; what templates write parses back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from message_examples import ANY_TOOLS, parsed, parsed_cut

from mindbatch.message_formats.formats import FORMATS
from mindbatch.message_formats.markers import LLAMA_ENDS

# By format: what it may drop from a text that has no valid call in it.
DROPPED = {
    "hermes": (),
    "qwen3": ("<think>", "</think>"),
    "qwen3_coder": ("<think>", "</think>"),
    "glm4": ("<think>", "</think>"),
    "deepseek": ("<think>", "</think>"),
    "llama3": LLAMA_ENDS,
    "mistral": ("[THINK]", "[/THINK]", "</s>", "<|im_end|>"),
    "kimi_k2": ("<think>", "</think>", "<|im_end|>", "[EOS]"),
    "lfm2": ("<think>", "</think>", "<|im_end|>"),
    "granite": ("<think>", "</think>", "<|end_of_text|>", "<|end|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    **dict.fromkeys(("deepseek_v32", "minimax_m2", "hunyuan", "olmo3", "nemotron"), ("<think>", "</think>")),
    "cohere": (
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|END_OF_TURN_TOKEN|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    **dict.fromkeys(("command_r", "functools"), ()),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>", "<|assistant_end|>"),
    "gemma4": ("<|channel>thought", "<channel|>", "<turn|>", "<|tool_response>", "<eos>"),
    "pythonic": LLAMA_ENDS,
    "gigachat": ("<|message_sep|>", "</s>"),
    "glm": (),
    "gpt_oss": (
        *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
        *("assistant", "analysis", "commentary", "final"),
    ),
}
BITS = (
    *("<tool_call>", "</tool_call>", "<function=", "<parameter=", ">", "</parameter>", "</function>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|python_tag|>", "<|constrain|>json", " to=functions.f", "<｜tool▁sep｜>", "```json", "```"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *(
        '{"name": "f", ',
        '"arguments": {}}',
        '"parameters": {}}',
        "{}",
        '{"a": ',
        "[",
        "]",
        "}",
        '"',
        "\\",
        ";",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_start|>", "<|python_start|>"),
    *("f(", "a=", ")", "'", "(", ",", "None", "<function_calls>", "</function_calls>", "<|tool_call|>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *('<invoke name="f">', '<parameter name="a">', "</invoke>", "<tool_calls>", "</tool_calls>"),
    *("<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="a" string="true">'),
    *("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", '"tool_name": "f", ', "Action:\n```json", "<|tools_prefix|>", "<|tools_suffix|>"),
    *("<|tool_call>", "call:f{", "a:", '<|"|>', "<tool_call|>", "<TOOLCALL>", "</TOOLCALL>"),
    *("functools[", "<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>"),
    *("<", "</", "<|", "[", "\n", " ", "\x00", "\ud800", "x"),
)
_texts = (
    st.lists(
        st.sampled_from(BITS)
        | st.sampled_from([*{part: None for parts in DROPPED.values() for part in parts}]),
        max_size=24,
    ).map("".join)
    | st.text()
)
_names = st.sampled_from([*FORMATS])


@given(_names, _texts, st.booleans(), st.data())
def test_any_text_gives_the_same_message_however_it_is_cut(
    name: str, text: str, in_reasoning: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    message = parsed(name, text, in_reasoning=in_reasoning)
    assert message == parsed_cut(name, text, cuts, in_reasoning=in_reasoning)
    assert message == parsed_cut(name, text, range(len(text)), in_reasoning=in_reasoning)


def _characters(text: str, name: str) -> str:
    """A text without what its format drops, and without whitespace."""
    for part in (*DROPPED[name], *FORMATS[name].end_tokens):
        text = text.replace(part, "")
    return "".join(text.split())


@given(_names, _texts, st.booleans())
@example("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", True)
@example("mistral", "[THINK]a</s>b</s>[/THINK]</s>c</s>", False)
@example("glm", "<|endoftext|>", False)
def test_no_character_is_lost_but_separators_and_markers(name: str, text: str, with_tools: bool) -> None:
    message = parsed(name, text, tools=ANY_TOOLS if with_tools else ())
    if not message.tool_calls:
        kept = f"{message.reasoning or ''}{message.content or ''}"
        # gpt-oss may come back to reasoning after content.
        assert sorted(_characters(kept, name)) == sorted(_characters(text, name))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        *("<" * 100_000, "[" * 100_000, "\n" * 100_000, "{" * 100_000, "<think>" + "\n<" * 50_000),
        *("<tool_call>" * 9_000, "[TOOL_CALLS]" * 9_000, "<|channel|>" * 9_000, "<|channel|>x" * 9_000),
        *("<｜tool▁call▁begin｜>" * 5_000, "</s>" * 9_000, "<|eot_id|>" * 9_000, '{"a":' * 20_000),
        '<tool_call>{"name": "' + "\\n" * 50_000,
        "<tool_call>f" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 3_000,
        '{"name": "f", "parameters": {}};' * 3_000,
    ],
    ids=lambda text: f"{text[:14]!r}",
)
def test_a_long_text_is_read_however_it_is_cut(name: str, text: str) -> None:
    assert parsed_cut(name, text, range(0, len(text), 997)) == parsed(name, text)
