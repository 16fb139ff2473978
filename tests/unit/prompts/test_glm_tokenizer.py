"""The tokenizers of ChatGLM2/3 and the first GLM-4, beside sentencepiece and tiktoken themselves."""

import base64
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level, tokenizer_of

from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.glm_tokenizer import COMMANDS, PATTERN
from mindbatch.prompts.token_bytes import byte_level_alphabet
from mindbatch.prompts.tokenizer import Tokenizer

CORPUS = [
    "hello world, the user and the system are here; it isn't far",
    "你好，世界。今天天气很好，我们去公园吧。",
    "Größe, naïve café, Ångström, señor, ça va très bien",
    "12+30=42, 1000000, 3.14159",
    "Привет, мир! Как дела сегодня?",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\t，。a1é的>▁"), max_size=40)
CHATGLM3 = (
    "{% for message in messages %}{% if loop.first %}[gMASK]sop{% endif %}<|{{ message['role'] }}|>\n "
    "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
START = [COMMANDS.index("[gMASK]"), COMMANDS.index("sop")]


@cache
def sentencepiece_model(**changes: Any) -> bytes:
    """A byte pair model as ChatGLM's is, but for its size."""
    settings = {
        "vocab_size": 460,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    }
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20),
        model_writer=written,
        character_coverage=0.98,
        minloglevel=2,
        **settings | changes,
    )
    return written.getvalue()


def tiktoken_ranks() -> dict[bytes, int]:
    """A vocabulary of bytes: each token by its rank."""
    alphabet = byte_level_alphabet()
    trained = byte_level(special=["<none>"])
    names = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(alphabet[c] for c in name) for name, _ in names if name != "<none>"]
    return {token: rank for rank, token in enumerate(tokens)}


def write_chatglm(folder: Path, data: bytes, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "ChatGLMTokenizer", "auto_map": {"AutoTokenizer": ["x.Y", None]}} | settings
        )
    )
    return folder


def write_glm4(folder: Path, **settings: Any) -> Path:
    ranks = tiktoken_ranks()
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    special = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|user|>", "<|assistant|>"]
    listed = {
        str(len(ranks) + i): {"content": text, "special": True, "normalized": False}
        for i, text in enumerate(special)
    }
    return write_chatglm(
        folder,
        b"".join(lines),
        tokenizer_class="ChatGLM4Tokenizer",
        **{"added_tokens_decoder": listed} | settings,
    )


@pytest.fixture(scope="module")
def chatglm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("chatglm")
    return tokenizer_of(write_chatglm(folder, sentencepiece_model(), chat_template=CHATGLM3))


@pytest.fixture(scope="module")
def glm4(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(write_glm4(tmp_path_factory.mktemp("glm4")))


@cache
def reference() -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())


@given(text=TEXTS)
def test_chatglm_encodes_and_decodes_as_sentencepiece(chatglm: Tokenizer, text: str) -> None:
    pieces = reference().encode(text)
    assert chatglm.encode(text, add_special_tokens=False) == pieces
    assert chatglm.decode(pieces) == reference().decode(pieces)


@pytest.mark.parametrize(
    "text", ["a <user> b<user>c  <user>  世界。", "don't", " don <user>", "  ", "<user>x"]
)
def test_pieces_that_a_model_defines_have_no_space_put_behind_them(tmp_path: Path, text: str) -> None:
    data = sentencepiece_model(user_defined_symbols="<user>,世界,don,  ")
    pieces = sentencepiece.SentencePieceProcessor(model_proto=data).encode(text)
    chatglm = tokenizer_of(write_chatglm(tmp_path / "chatglm", data))
    assert chatglm.encode(text, add_special_tokens=False) == pieces


def test_texts_begin_with_their_commands(chatglm: Tokenizer, glm4: Tokenizer) -> None:
    size = reference().vocab_size()
    assert chatglm.encode("hello")[:2] == [size + number for number in START]
    assert chatglm.vocab_size == size + len(COMMANDS)
    assert (chatglm.bos_token_id, chatglm.eos_token_ids) == (1, (2,))
    size = len(tiktoken_ranks())
    assert glm4.encode("hello")[:2] == [size + 2, size + 4]
    assert glm4.eos_token_ids == (size,)


def test_chats_are_what_the_authors_code_makes_of_them(chatglm: Tokenizer) -> None:
    """A role, a line break and the text, each encoded by itself: with a space of its own in front."""
    size, encode = reference().vocab_size(), reference().encode
    user, assistant = (size + COMMANDS.index(f"<|{role}|>") for role in ("user", "assistant"))
    messages = [{"role": "user", "content": "你好 <|user|>"}, {"role": "assistant", "content": "hello"}]
    begin = [size + number for number in START]
    expected = [*begin, user, *encode("\n"), *encode("你好 <|user|>")]
    expected += [assistant, *encode("\n"), *encode("hello"), assistant]
    assert chatglm.encode_chat(messages) == expected


def test_chatglm2_has_a_form_of_chats_in_its_code(tmp_path: Path) -> None:
    """A folder without a template has it where config.json says whose it is."""
    folder = write_chatglm(tmp_path, sentencepiece_model())
    chat = [
        {"role": role, "content": text} for role, text in (("user", "你"), ("assistant", "a"), ("user", "b"))
    ]
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "THUDM/chatglm3-6b"}))
    assert not tokenizer_of(folder).has_chat_template
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "THUDM/chatglm2-6b"}))
    text = "[Round 1]\n\n问：你\n\n答：a\n\n[Round 2]\n\n问：b\n\n答："
    begin = [reference().vocab_size() + number for number in START]
    assert tokenizer_of(folder).encode_chat(chat) == [*begin, *reference().encode(text)]


@given(text=TEXTS)
def test_glm4_encodes_and_decodes_as_tiktoken(glm4: Tokenizer, text: str) -> None:
    ranks = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=tiktoken_ranks(), special_tokens={})
    ids = ranks.encode(text, disallowed_special=())
    assert glm4.encode(text, add_special_tokens=False) == ids
    assert glm4.decode(ids) == text


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "unigram", "vocab_size": 345}, "trainer_spec.model_type=1; allowed: 2"),
        ({"byte_fallback": False, "vocab_size": 330}, "trainer_spec.byte_fallback=False; allowed: True"),
        (
            {"normalization_rule_name": "nmt_nfkc"},
            "normalizer_spec.precompiled_charsmap=True; allowed: False",
        ),
        ({"add_dummy_prefix": False}, "normalizer_spec.add_dummy_prefix=False; allowed: True"),
    ],
)
def test_other_sentencepiece_models_are_refused(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    folder = write_chatglm(tmp_path, sentencepiece_model(**changes))
    with pytest.raises(CheckpointError) as refused:
        Tokenizer.load(folder)
    assert [*refused.value.lines] == [f"{folder}/tokenizer.model: {fault}"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff\xff", "not a sentencepiece model"),
        (b"", "trainer_spec.model_type=1; allowed: 2"),
    ],
)
def test_damaged_sentencepiece_models(content: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write_chatglm(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"AA== 0\nAQ== 2\n", "line 2: rank 2; must be 1"),
        (b"AA== 0\n*** 1\n", r"line 2: must be a token in base64 and its rank, found b'\*\*\* 1'"),
        (b"AA== 0 1\n", "line 1: must be a token in base64 and its rank"),
        (b"AA== 0\nAA== 1\n", "a token is duplicated"),
        (b"AA== 0\n", "no token for the byte"),
    ],
)
def test_damaged_ranks(content: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write_chatglm(tmp_path, content, tokenizer_class="ChatGLM4Tokenizer"))


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        ({"9000": {"content": "<sop>"}}, r"has 1 tokens from \[9000\] on; must be the ids after those"),
        ({"x": {"content": "<sop>"}}, "must have a token with its flags for each number"),
        (None, "must have a token with its flags for each number"),
        ({}, r"no token \[gMASK\] and <sop>, with which every text starts"),
    ],
)
def test_command_tokens_that_are_not_behind_the_others(listed: Any, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Tokenizer.load(write_glm4(tmp_path, added_tokens_decoder=listed))
