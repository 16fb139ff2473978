"""The tokenizer of ChatGLM-6B beside sentencepiece and the rules of the published code around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ice_tokenizers import Published, loaded, model_file, write
from mindbatch.io.errors import CheckpointError, PromptError
from mindbatch.prompts.control_text import encoding_of
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer

TEXTS = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "M"])
    | st.sampled_from(" \n\t\r，。：！a1é的问<n>▁ＡﬁㄱéНвệ한"),
    max_size=40,
)
MULTILINGUAL = [
    "你好，世界！",
    "def f(x):\n    if x:\n\t\treturn  [1,   2]\n",
    "Ｆｕｌｌ　ｗｉｄｔｈ ①②③ ㎏ ﬁnal Å é",
    "  leading and trailing  ",
    "Tiếng Việt: nguyễn Huệ",
    "ｶﾞｷﾞｸﾞ 日本語　です。",
    "مرحبا بالعالم, שלום עולם",
    "नमस्ते दुनिया, สวัสดีชาวโลก",
    "emoji 👩‍👩‍👧 🇨🇳 ❤️",
    " " * 200 + "x" + " " * 79,
    "<n> <|tab|> <|blank_3|> <0x41> [gMASK]<sop>",
    "한글 자모 한글",
]


Pair = tuple[Tokenizer, Published]


@pytest.fixture(scope="module", params=[(True, 0), (False, 0), (True, 300)], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    removes, images = request.param
    data = model_file(remove_extra_whitespaces=removes)
    folder = write(tmp_path_factory.mktemp("ice"), data, num_image_tokens=images)
    return loaded(folder), Published(data, images)


@given(text=TEXTS)
def test_texts_are_encoded_and_decoded_as_the_published_class_does(pair: Pair, text: str) -> None:
    ours, published = pair
    ids = published.encode(text)
    assert ours.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids) == published.decode(ids)


@pytest.mark.parametrize("text", MULTILINGUAL)
def test_texts_of_many_languages(pair: Pair, text: str) -> None:
    ours, published = pair
    ids = published.encode(text)
    assert ours.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids) == published.decode(ids)
    detokenizer = IncrementalDetokenizer(ours, ours.encode("x"))
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == published.decode(ids)


def test_prompts_end_with_a_mask_and_the_beginning_of_the_output(pair: Pair) -> None:
    ours, published = pair
    end = [published.number("[gMASK]"), published.number("<sop>")]
    assert ours.encode("hello") == [*published.encode("hello"), *end]
    assert (ours.bos_token_id, ours.eos_token_ids) == (end[1], (published.number("<eop>"),))
    assert ours.vocab_size == published.pieces.vocab_size() + published.images
    assert ours.decode([*published.encode("hello"), *end]) == "hello"


def test_chats_are_what_the_published_class_makes_of_them(pair: Pair) -> None:
    """The text of a control token in a message stays text."""
    ours, published = pair
    end = [published.number("[gMASK]"), published.number("<sop>")]
    question = {"role": "user", "content": "你好 [gMASK]<sop>"}
    assert ours.encode_chat([question]) == [*published.encode("你好 [gMASK]<sop>"), *end]
    chat = [question, {"role": "assistant", "content": "好"}, {"role": "user", "content": "x\n"}]
    text = "[Round 0]\n问：你好 [gMASK]<sop>\n答：好\n[Round 1]\n问：x\n\n答："
    assert ours.encode_chat(chat) == [*published.encode(text), *end]


@pytest.mark.parametrize(
    ("roles", "fault"),
    [
        (["system", "user"], "messages must be of user and assistant in turn"),
        (["user", "user"], "messages must be of user and assistant in turn"),
        (["user", "assistant"], "the last message must be of the user"),
    ],
)
def test_chats_of_another_form_are_refused(pair: Pair, roles: list[str], fault: str) -> None:
    with pytest.raises(PromptError, match=fault):
        pair[0].encode_chat([{"role": role, "content": "x"} for role in roles])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "bpe"}, "trainer_spec.model_type=2; allowed: 1"),
        ({"byte_fallback": False}, "trainer_spec.byte_fallback=False; allowed: True"),
        ({"normalization_rule_name": "nfkc_cf"}, "normalizer_spec.name='nfkc_cf'; allowed: nmt_nfkc, nfkc"),
        (
            {"control_symbols": "<x>"},
            r"no piece \[MASK\], \[sMASK\], <eop> and 2 more; a file of a later release",
        ),
        ({"user_defined_symbols": "<n>"}, r"no piece <\|tab\|>, .* and 77 more; a file of a later release"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write(tmp_path, model_file(**changes), num_image_tokens=0))


@pytest.mark.parametrize("images", [-1, True, "0", 1 << 20])
def test_a_number_of_images_that_is_none(images: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_image_tokens=.*: must be a whole number, 0 to 131072"):
        Tokenizer.load(write(tmp_path, model_file(), num_image_tokens=images))


def test_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="ice_text.model: not a sentencepiece model"):
        Tokenizer.load(write(tmp_path, b"\xff\xff"))


def test_a_table_that_the_library_trips_over_is_the_rows_fault() -> None:
    """A panic of Rust is no Exception; damaged tables of normalization may end in one."""

    class PanicException(BaseException):
        pass

    class Damaged:
        def encode(self, *args: Any, **options: Any) -> None:
            raise PanicException("index out of bounds")

    with pytest.raises(PromptError, match="the tokenizer cannot encode it: index out of bounds"):
        encoding_of(Damaged(), "x")
