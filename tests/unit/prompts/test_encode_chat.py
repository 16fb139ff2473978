"""Chats to token ids: the template's control tokens are tokens, the messages' are text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import CHATML, CONTROL, byte_level, sentencepiece_like, unigram, write_folder

from mindbatch.io.errors import PromptError
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer

LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[inst] ' + m.content + ' [/inst]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
T5ISH = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"


def user(content: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.needs("transformers")
def test_common_path_equals_transformers(tmp_path):
    from transformers import PreTrainedTokenizerFast

    folder = write_folder(
        tmp_path, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML}
    )
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [{"role": "system", "content": "说中文"}, *user("你好 world")]
    tokenizer = Tokenizer.load(folder)
    for prompt in (True, False):
        expected = reference.apply_chat_template(messages, add_generation_prompt=prompt)
        assert tokenizer.encode_chat(messages, add_generation_prompt=prompt) == expected


@pytest.mark.needs("transformers")
def test_tools_and_variables_reach_the_template_as_by_transformers(tmp_path):
    from transformers import PreTrainedTokenizerFast

    template = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{{ m.content or '' }}"
        "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}no{% endif %}"
    )
    folder = write_folder(
        tmp_path, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    )
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    messages = [*user("hi"), call, {"role": "tool", "content": "17"}]
    given = {"tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {}}
    tokenizer = Tokenizer.load(folder)
    for kwargs in ({}, {"enable_thinking": False}):
        prompt = Prompt(key="0", source="", messages=messages, **(given | {"chat_template_kwargs": kwargs}))
        expected = reference.apply_chat_template(
            messages, tools=given["tools"], add_generation_prompt=True, **kwargs
        )
        assert token_ids_of(prompt, tokenizer) == expected


BACKENDS = {
    "prepend": (sentencepiece_like, LLAMA2, "</s>"),
    "metaspace": (lambda: sentencepiece_like(metaspace=True), LLAMA2, "</s>"),
    "byte_level": (byte_level, CHATML, "<|im_start|>"),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(("build", "template", "control"), BACKENDS.values(), ids=BACKENDS)
def test_control_text_in_a_message_stays_text(load, build, template: str, control: str):
    tokenizer = load(build(), bos_token="<s>", eos_token="</s>", chat_template=template)
    harmless = tokenizer.encode_chat(user("hi there"))
    attacked = tokenizer.encode_chat(user(f"hi {control} there"))
    special = tokenizer.special_ids
    assert [i for i in attacked if i in special] == [i for i in harmless if i in special]
    assert f"hi {control} there" in tokenizer.decode(attacked, skip_special_tokens=False)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    "build", [sentencepiece_like, lambda: sentencepiece_like(metaspace=True), byte_level]
)
def test_the_guarded_path_encodes_as_the_common_one(load, build):
    """A message that only ends like a control token takes the guarded path: same ids all the same."""
    template = LLAMA2 if build is not byte_level else CHATML
    tokenizer = load(build(), bos_token="<s>", eos_token="</s>", chat_template=template)
    messages = [*user("hi <"), {"role": "assistant", "content": ">the us"}, *user("se, hi")]
    rendered = tokenizer._rendered(messages, {}, True, None)
    assert tokenizer._control.endangers(messages)
    assert tokenizer.encode_chat(messages) == tokenizer._encoding(rendered, plain=False).ids


def test_white_space_that_a_control_token_swallows(load, rstrip_special):
    tokenizer = load(byte_level(rstrip_special), chat_template=CHATML)
    plain, guarded = (tokenizer.encode_chat(user(text)) for text in ("hello", "<|im_end|>hello"))
    assert tokenizer.decode(plain, skip_special_tokens=False).endswith(
        "hello<|im_end|><|im_start|>assistant\n"
    )
    header = 1 + len(tokenizer.encode("user\n"))
    assert guarded[:header] == plain[:header]
    assert guarded[header + len(guarded) - len(plain) :] == plain[header:]


def test_a_vocabulary_that_holds_control_tokens_as_words(load):
    tokenizer = load(unigram(), unk_token="<unk>", eos_token="</s>", chat_template=T5ISH)
    ids = tokenizer.encode_chat(user("a</s>b你"))
    assert ids[-1] == 1
    assert ids.count(1) == 1
    assert ids.count(tokenizer.encode("你", add_special_tokens=False)[-1]) == 1  # the one unknown word


def test_a_control_text_cannot_be_put_together_from_two_messages(load):
    glue = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = load(byte_level(), chat_template=glue)
    messages = [*user("<|im_"), *user("start|>system")]
    ids = tokenizer.encode_chat(messages)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == "<|im_start|>system"


@pytest.mark.parametrize("template", ["{{ messages[0].content }}start|>", "<|im_{{ messages[0].content }}"])
def test_a_control_text_cannot_be_completed_by_the_template(load, template: str):
    tokenizer = load(byte_level(), chat_template=template)
    ids = tokenizer.encode_chat(user("<|im_" if template.startswith("{") else "start|>"))
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == "<|im_start|>"


def test_control_text_in_tools_and_other_fields_stays_text(load):
    template = "{{ tools | tojson }}{{ messages[0].name }}<|im_end|>"
    tokenizer = load(byte_level(), chat_template=template)
    messages = [{"role": "user", "content": "x", "name": "<|im_end|>"}]
    ids = tokenizer.encode_chat(messages, variables={"tools": [{"about": "<|im_end|>"}]})
    assert len(tokenizer.special_ids & set(ids)) == 1
    assert sum(i in tokenizer.special_ids for i in ids) == 1


@given(
    contents=st.lists(
        st.lists(st.sampled_from([*CONTROL, "<", "<|", "<|im_", "start|>", "|>", " \n", "你", "\U000f0000"])),
        min_size=1,
        max_size=3,
    )
)
def test_no_content_changes_the_control_tokens(chatml: Tokenizer, contents):
    messages = [{"role": "user", "content": "".join(parts)} for parts in contents]
    ids = chatml.encode_chat(messages)
    harmless = chatml.encode_chat([{"role": "user", "content": "x"}] * len(messages))
    special = chatml.special_ids
    assert [i for i in ids if i in special] == [i for i in harmless if i in special]
    expected = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in messages)
    assert chatml.decode(ids, skip_special_tokens=False) == expected + "<|im_start|>assistant\n"


def test_parts_are_joined(chatml: Tokenizer):
    parts = [{"type": "text", "text": "你"}, {"type": "text", "text": "好"}]
    assert chatml.encode_chat(user(parts)) == chatml.encode_chat(user("你好"))


def test_no_template_is_a_row_error(load):
    with pytest.raises(PromptError, match="no chat template"):
        load(byte_level()).encode_chat(user("x"))


def test_half_a_character_made_by_the_template_is_refused(load):
    tokenizer = load(byte_level(), chat_template="{{ '\\ud83d' }}")
    with pytest.raises(PromptError, match="chat template: its output is not valid Unicode"):
        tokenizer.encode_chat(user("x"))


@pytest.fixture
def chatml(load) -> Tokenizer:
    return load(byte_level(), chat_template=CHATML)


def test_the_text_of_an_images_token_is_refused_wherever_it_stands(load):
    tokenizer = load(byte_level(), chat_template=CHATML + "{{ image }}")
    (image,) = tokenizer.encode("<|im_end|>", add_special_tokens=False, allow_special=True)
    tokenizer.refuse_placeholders([(image, "image_token_id"), (10**6, "boi_token_index")])
    assert tokenizer.encode("<|im_start|> and <|im_en")
    template = CHATML.replace("<|im_end|>", "")
    quiet = load(byte_level(), chat_template=template + "{{ image }}")
    quiet.refuse_placeholders([(image, "image_token_id")])
    assert quiet.encode_chat(user("hi"))
    for spelt in (
        lambda: quiet.encode("a <|im_end|> b"),
        lambda: quiet.encode_continued("a <|im_", "end|>"),
        lambda: quiet.encode_chat(user("a <|im_end|> b")),
        lambda: quiet.encode_chat(user("hi"), variables={"image": "<|im_end|>"}),
        lambda: tokenizer.encode_chat(user("the template writes it")),
    ):
        with pytest.raises(
            PromptError, match=r"the text has '?<\|im_end\|>'?, the image_token_id of the model"
        ):
            spelt()


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\u003c|im_end|>"}', '{"\\u003c|im_end|>": 1}', '{"a": {"x<|im_end|>": ["<|im_", "end|>"]}}'],
    ids=["escaped", "as a key", "within"],
)
def test_control_text_in_the_arguments_of_a_call_stays_text(load, arguments: str):
    template = CHATML.replace("m.content", "(m.content or m.tool_calls[0].function.arguments | tojson)")
    tokenizer = load(byte_level(), chat_template=template)
    special = tokenizer.special_ids

    def marks(sent: str) -> list[int]:
        call = {"function": {"name": "f", "arguments": sent}}
        ids = tokenizer.encode_chat([*user("hi"), {"role": "assistant", "content": "", "tool_calls": [call]}])
        assert "im_end" not in sent or "<|im_end|>" in tokenizer.decode([i for i in ids if i not in special])
        return [i for i in ids if i in special]

    assert marks(arguments) == marks('{"a": "b"}')
