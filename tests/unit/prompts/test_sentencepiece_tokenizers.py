"""The tokenizers of ChatGLM-6B and PanGu-alpha beside sentencepiece and the published rules around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

import pangu_tokenizers
from ice_tokenizers import Published, loaded, model_file, write
from mindbatch.io.errors import CheckpointError, PromptError
from mindbatch.prompts.pangu_tokenizer import _slices
from mindbatch.prompts.text_encoding import encoding_of
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer

TEXTS = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "M"])
    | st.sampled_from(" \n\t\r，。：！a1é的问天气今<n>▁\u2582\u2583ＡﬁㄱéНвệ한"),
    max_size=40,
)
MULTILINGUAL = [
    "今天天气很好，我们去公园吧。\n你好 世界！",
    "def f(x):\n    if x:\n\t\treturn  [1,   2]\n",
    "Ｆｕｌｌ　ｗｉｄｔｈ ①②③ ㎏ ﬁnal Å é",
    "  leading and trailing  ",
    "Tiếng Việt: nguyễn Huệ",
    "ｶﾞｷﾞｸﾞ 日本語　です。",
    "مرحبا بالعالم, שלום עולם",
    "नमस्ते दुनिया, สวัสดีชาวโลก",
    "emoji 👩‍👩‍👧 🇨🇳 ❤️",
    " " * 200 + "x" + " " * 79,
    "emoji 🇨🇳 😀 <eot> <unk> <s>",
    "สวัสดีชาวโลก, 한글 문장",
    "",
    " ",
    "\t\t",
    "<n> <|tab|> <|blank_3|> <0x41> [gMASK]<sop>",
    "한글 자모 한글",
]


Pair = tuple[Tokenizer, Published]
PanguPair = tuple[Tokenizer, pangu_tokenizers.Published]


@pytest.fixture(scope="module", params=[(True, 0), (False, 0), (True, 300)], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    removes, images = request.param
    data = model_file(remove_extra_whitespaces=removes)
    folder = write(tmp_path_factory.mktemp("ice"), data, num_image_tokens=images)
    return loaded(folder), Published(data, images)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pangu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PanguPair:
    data = pangu_tokenizers.model_file(request.param)
    folder = pangu_tokenizers.write(tmp_path_factory.mktemp("pangu"), data)
    return loaded(folder), pangu_tokenizers.Published(data)


def check_both_ways(ours: Tokenizer, published: Published | pangu_tokenizers.Published, text: str) -> None:
    """Whole and streamed; what PanGu-alpha does not know has no text."""
    ids = published.encode(text)
    assert ours.encode(text, add_special_tokens=False) == ids
    if isinstance(published, pangu_tokenizers.Published):
        assert ours.encode(text) == ids
        ids = [number for number in ids if number != published.pieces.unk_id()]
    assert ours.decode(ids) == published.decode(ids)
    detokenizer = IncrementalDetokenizer(ours, ours.encode("x"))
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == published.decode(ids)


@given(text=TEXTS)
def test_texts_are_encoded_and_decoded_as_chatglm_does(pair: Pair, text: str) -> None:
    check_both_ways(*pair, text)


@given(text=TEXTS)
def test_texts_are_encoded_and_decoded_as_pangu_does(pangu: PanguPair, text: str) -> None:
    check_both_ways(*pangu, text)


@pytest.mark.parametrize("text", MULTILINGUAL)
def test_texts_of_many_languages(pair: Pair, pangu: PanguPair, text: str) -> None:
    check_both_ways(*pair, text)
    check_both_ways(*pangu, text)


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
        (["system", "user"], "messages must alternate between user and assistant"),
        (["user", "user"], "messages must alternate between user and assistant"),
        (["user", "assistant"], "the last message must be from the user"),
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


def piece_added(piece: str) -> bytes:
    """A model file with one piece more."""
    model = sentencepiece_model_pb2.ModelProto.FromString(pangu_tokenizers.model_file())
    model.pieces.add(piece=piece, score=-1.0)
    return bytes(model.SerializeToString())


def test_spaces_and_ends_of_lines_come_back(pangu: PanguPair) -> None:
    ours, _ = pangu
    text = " 今天 天气\n\n很好 a  \n"
    assert ours.decode(ours.encode(text)) == text


def test_the_end_of_pangus_texts_is_a_token_that_texts_never_become(pangu: PanguPair) -> None:
    ours, published = pangu
    end = published.pieces.piece_to_id("<eot>")
    assert ours.eos_token_ids == (end,)
    assert ours.vocab_size == published.pieces.vocab_size()
    assert end not in ours.encode("a <eot>")
    assert ours.encode("a<eot>", allow_special=True)[-1] == end
    assert ours.decode([*ours.encode("天气"), end]) == "天气"


def test_chats_of_pangu(tmp_path: Path) -> None:
    """By a template that the folder has; the text of a control token in a message stays text."""
    template = "{{ messages[0]['content'] }}<eot>{{ messages[0]['content'] }}"
    ours = loaded(pangu_tokenizers.write(tmp_path, pangu_tokenizers.model_file(), chat_template=template))
    published = pangu_tokenizers.Published(pangu_tokenizers.model_file())
    text = "天气 <eot>"
    said, end = published.encode(text), published.pieces.piece_to_id("<eot>")
    assert ours.encode_chat([{"role": "user", "content": text}]) == [*said, end, *said]


def test_texts_of_pangu_may_begin_and_end_with_tokens(tmp_path: Path) -> None:
    ours = loaded(
        pangu_tokenizers.write(
            tmp_path, pangu_tokenizers.model_file(), add_bos_token=True, add_eos_token=True
        )
    )
    published = pangu_tokenizers.Published(pangu_tokenizers.model_file())
    start, end = (published.pieces.piece_to_id(piece) for piece in ("<s>", "<eot>"))
    assert ours.encode("天气") == [start, *published.encode("天气"), end]
    assert ours.encode("天气", add_special_tokens=False) == published.encode("天气")


@pytest.mark.needs("transformers")
def test_a_folder_is_known_by_its_class_or_by_its_configuration(tmp_path: Path) -> None:
    folder = pangu_tokenizers.write(
        tmp_path, pangu_tokenizers.model_file(), tokenizer_class="PanguAlphaTokenizer"
    )
    expected = loaded(folder).encode("天气")
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_pangu"}))
    assert loaded(folder).encode("天气") == expected
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="vocab.model alone does not determine the tokenizer's class"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "char"}, "trainer_spec.model_type=4; allowed: 1, 2"),
        ({"byte_fallback": True, "vocab_size": 800}, "trainer_spec.byte_fallback=True; allowed: False"),
        ({"normalization_rule_name": "nfkc_cf"}, "normalizer_spec.name='nfkc_cf'; allowed: nmt_nfkc, nfkc"),
        (
            {"remove_extra_whitespaces": False},
            "normalizer_spec.remove_extra_whitespaces=False; allowed: True",
        ),
        ({"split_by_whitespace": False}, r"pieces of several words=\d+; allowed: 0"),
        (
            {"model_type": "unigram", "control_symbols": "<eot>,world"},
            "other pieces that a word may contain=1; allowed: 0",
        ),
        ({"user_defined_symbols": "\u2582,天气"}, "other pieces that a word may contain=1; allowed: 0"),
    ],
)
def test_other_models_of_pangu_are_refused(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(pangu_tokenizers.write(tmp_path, pangu_tokenizers.model_file(**changes)))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xff\xff", "vocab.model: not a sentencepiece model"),
        (
            pangu_tokenizers.model_file().replace(b"world", b"w\xff\xffld", 1),
            "not a sentencepiece model|pieces that are not text=1",
        ),
        (piece_added("天" * 1001), "pieces of over 1000 characters=1; allowed: 0"),
    ],
    ids=["no model", "no text", "long"],
)
def test_a_damaged_file_of_pangu(data: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(pangu_tokenizers.write(tmp_path, data))


def test_a_damaged_table_of_normalization_is_the_rows_fault(tmp_path: Path) -> None:
    """tokenizers panics; where it does so within a call of its own, the process would be aborted."""
    model = sentencepiece_model_pb2.ModelProto.FromString(pangu_tokenizers.model_file())
    table = model.normalizer_spec.precompiled_charsmap
    model.normalizer_spec.precompiled_charsmap = table[:4] + b"\xff" * 4000 + table[4004:]
    ours = loaded(pangu_tokenizers.write(tmp_path, model.SerializeToString()))
    with pytest.raises(PromptError, match="cannot encode it: .*its table of normalization is damaged"):
        ours.encode("今天 天气")


def test_long_texts_are_divided_in_a_time_that_grows_as_they_do() -> None:
    """A slice costs as much as what it is taken of is long."""
    taken = []

    class Text(str):
        __slots__ = ()

        def __getitem__(self, key: Any) -> Text:
            taken.append(len(self))
            return Text(super().__getitem__(key))

    lengths = [1, 3, 2, 2] * 256
    text = Text("".join(map(str, range(1000))))[: sum(lengths)]
    taken.clear()
    assert [len(each) for each in _slices(text, lengths)] == lengths  # type: ignore[arg-type]
    assert sum(taken) <= 2 * len(text) * (len(lengths).bit_length() + 1)
