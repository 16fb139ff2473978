"""The tokenizer of PanGu-alpha beside jieba, sentencepiece and the published code's rules around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from ice_tokenizers import loaded
from mindbatch.io.errors import CheckpointError, PromptError
from mindbatch.prompts.pangu_tokenizer import _slices
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer
from pangu_tokenizers import Published, model_file, write

TEXTS = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "M"])
    | st.sampled_from(" \n\t\r，。：！a1é的问天气今▁\u2582\u2583ＡﬁㄱéНвệ한"),
    max_size=40,
)
MULTILINGUAL = [
    "今天天气很好，我们去公园吧。\n你好 世界！",
    "def f(x):\n    if x:\n\t\treturn  [1,   2]\n",
    "Ｆｕｌｌ　ｗｉｄｔｈ ①②③ ㎏ ﬁnal Å é",
    "  leading and trailing  \r\n",
    "Tiếng Việt: nguyễn Huệ",
    "ｶﾞｷﾞｸﾞ 日本語　です。",
    "مرحبا بالعالم, שלום עולם",
    "สวัสดีชาวโลก, 한글 문장",
    "emoji 🇨🇳 😀 <eot> <unk> <s>",
    "",
    " ",
    "\t\t",
]


def piece_added(piece: str) -> bytes:
    """A model file with one piece more."""
    model = sentencepiece_model_pb2.ModelProto.FromString(model_file())
    model.pieces.add(piece=piece, score=-1.0)
    return bytes(model.SerializeToString())


Pair = tuple[Tokenizer, Published]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    data = model_file(request.param)
    return loaded(write(tmp_path_factory.mktemp("pangu"), data)), Published(data)


@given(text=TEXTS)
def test_texts_are_encoded_and_decoded_as_the_published_class_does(pair: Pair, text: str) -> None:
    ours, published = pair
    ids = published.encode(text)
    assert ours.encode(text) == ids
    known = [each for each in ids if each != published.pieces.unk_id()]
    assert ours.decode(known) == published.decode(known)


@pytest.mark.parametrize("text", MULTILINGUAL)
def test_texts_of_many_languages(pair: Pair, text: str) -> None:
    ours, published = pair
    ids = published.encode(text)
    assert ours.encode(text) == ids
    known = [each for each in ids if each != published.pieces.unk_id()]
    detokenizer = IncrementalDetokenizer(ours, ours.encode("x"))
    assert "".join(map(detokenizer.push, known)) + detokenizer.flush() == published.decode(known)


def test_spaces_and_ends_of_lines_come_back(pair: Pair) -> None:
    ours, _ = pair
    text = " 今天 天气\n\n很好 a  \n"
    assert ours.decode(ours.encode(text)) == text


def test_the_end_of_texts_is_a_token_that_texts_never_become(pair: Pair) -> None:
    ours, published = pair
    end = published.pieces.piece_to_id("<eot>")
    assert ours.eos_token_ids == (end,)
    assert ours.vocab_size == published.pieces.vocab_size()
    assert end not in ours.encode("a <eot>")
    assert ours.encode("a<eot>", allow_special=True)[-1] == end
    assert ours.decode([*ours.encode("天气"), end]) == "天气"


def test_chats(pair: Pair, tmp_path: Path) -> None:
    """By a template that the folder has; the text of a control token in a message stays text."""
    template = "{{ messages[0]['content'] }}<eot>{{ messages[0]['content'] }}"
    ours = loaded(write(tmp_path, model_file(), chat_template=template))
    published = Published(model_file())
    text = "天气 <eot>"
    said, end = published.encode(text), published.pieces.piece_to_id("<eot>")
    assert ours.encode_chat([{"role": "user", "content": text}]) == [*said, end, *said]


def test_texts_may_begin_and_end_with_tokens(tmp_path: Path) -> None:
    ours = loaded(write(tmp_path, model_file(), add_bos_token=True, add_eos_token=True))
    published = Published(model_file())
    start, end = (published.pieces.piece_to_id(piece) for piece in ("<s>", "<eot>"))
    assert ours.encode("天气") == [start, *published.encode("天气"), end]
    assert ours.encode("天气", add_special_tokens=False) == published.encode("天气")


def test_a_folder_is_known_by_its_class_or_by_its_configuration(tmp_path: Path) -> None:
    folder = write(tmp_path, model_file(), tokenizer_class="PanguAlphaTokenizer")
    expected = loaded(folder).encode("天气")
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_pangu"}))
    assert loaded(folder).encode("天气") == expected
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="vocab.model alone does not say what tokenizer it belongs to"):
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
            "other pieces that a word may hold=1; allowed: 0",
        ),
        ({"user_defined_symbols": "\u2582,天气"}, "other pieces that a word may hold=1; allowed: 0"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write(tmp_path, model_file(**changes)))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xff\xff", "vocab.model: not a sentencepiece model"),
        (
            model_file().replace(b"world", b"w\xff\xffld", 1),
            "not a sentencepiece model|pieces that are no text=1",
        ),
        (piece_added("天" * 1001), "pieces of over 1000 characters=1; allowed: 0"),
    ],
    ids=["no model", "no text", "long"],
)
def test_a_damaged_file(data: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write(tmp_path, data))


def test_a_damaged_table_of_normalization_is_the_rows_fault(tmp_path: Path) -> None:
    """tokenizers panics; where it does so within a call of its own, the process would be aborted."""
    model = sentencepiece_model_pb2.ModelProto.FromString(model_file())
    table = model.normalizer_spec.precompiled_charsmap
    model.normalizer_spec.precompiled_charsmap = table[:4] + b"\xff" * 4000 + table[4004:]
    ours = loaded(write(tmp_path, model.SerializeToString()))
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
