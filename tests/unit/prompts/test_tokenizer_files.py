"""Loading from model folders: every layout, offline, quiet, and never running the folder's code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import (
    CHATML,
    byte_level,
    sentencepiece_like,
    tokenizer_of,
    write_folder,
    write_gpt2_vocabulary,
)
from tokenizers import AddedToken

from mindbatch.io.errors import CheckpointError
from mindbatch.prompts import tokenizer_files
from mindbatch.prompts.token_bytes import LoadedTokenizer
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.prompts.tokenizer_files import load_plain

ROOT = Path(__file__).resolve().parents[3]
STORIES = ROOT.parent / "shared" / "data" / "stories260K"
TRAP = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Remote: pass\n"


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def error_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path: Path):
    write_json(tmp_path / "config.json", {"model_type": "gpt2"})
    assert Tokenizer.load(tmp_path) is None


CONFIGS: dict[str, dict[str, Any]] = {
    "class named": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "slow name": {"tokenizer_class": "GPT2Tokenizer"},
    "class of transformers 5": {"tokenizer_class": "TokenizersBackend"},
    "no class": {},
    "abstract class": {"tokenizer_class": "PreTrainedTokenizer"},
}


@pytest.mark.needs("transformers")
def test_a_guessed_class_adds_no_tokens(tmp_path: Path):
    """llama's class would add <s> past the end of a byte-level vocabulary and put it before each text."""
    write_folder(tmp_path, byte_level(), None)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.vocab_size == byte_level().get_vocab_size()
    assert max(tokenizer.encode("hello")) < byte_level().get_vocab_size()


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("model", [None, {"model_type": "gpt2"}, {"model_type": "qwen2"}])
def test_vocab_and_merges(tmp_path: Path, model: dict[str, Any] | None):
    write_gpt2_vocabulary(tmp_path)
    if model is not None:
        write_json(tmp_path / "config.json", model)
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.decode(tokenizer.encode("hello 你好")) == "hello 你好"
    assert tokenizer.encode("hello world") == byte_level().encode("hello world").ids
    assert tokenizer.eos_token_ids == (byte_level().token_to_id("<|endoftext|>"),)


@pytest.mark.needs("transformers")
def test_sentencepiece_model(tmp_path: Path):
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text.txt"
    text.write_text("hello world\nthe cat sat\n你好 世界\n" * 20, encoding="utf-8")
    folder = tmp_path / "model"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"})
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.encode("hello 你好 ☃")
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids) == "hello 你好 ☃"


def test_chat_template_file_and_named_templates(tmp_path: Path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    write_folder(tmp_path / "a", byte_level(), {**CONFIGS["class named"], "chat_template": named})
    write_folder(tmp_path / "b", byte_level(), {**CONFIGS["class named"], "chat_template": "unused"})
    (tmp_path / "b" / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    messages = [{"role": "user", "content": "x"}]
    a, b = tokenizer_of(tmp_path / "a"), tokenizer_of(tmp_path / "b")
    assert a.decode(a.encode_chat(messages)) == "usual"
    assert a.decode(a.encode_chat(messages, variables={"tools": []})) == "tools"
    assert b.decode(b.encode_chat(messages)) == "from the file"


AUTO_MAPS = [
    {"AutoTokenizer": ["remote.Remote", None]},
    ["remote.Remote", None],
    {"AutoTokenizer": "remote.Remote"},
]


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("auto_map", AUTO_MAPS)
@pytest.mark.parametrize("with_json", [True, False])
def test_a_class_that_exists_only_as_code_is_refused(tmp_path: Path, auto_map: Any, with_json: bool):
    config = {"tokenizer_class": "Remote", "auto_map": auto_map}
    write_folder(tmp_path, byte_level() if with_json else None, config)
    (tmp_path / "remote.py").write_text(TRAP, encoding="utf-8")
    message = error_of(tmp_path)
    assert "remote.Remote" in message
    assert "never run" in message
    assert not (tmp_path / "ran").exists()


def test_code_of_a_folder_is_not_run_when_the_class_is_known(tmp_path: Path):
    auto_map = {"AutoTokenizer": ["remote.Remote", "remote.Remote"], "AutoConfig": "remote.Remote"}
    config = {"tokenizer_class": "GPT2Tokenizer", "auto_map": auto_map, "chat_template": CHATML}
    write_folder(tmp_path, byte_level(), config)
    write_json(tmp_path / "config.json", {"model_type": "remote", "auto_map": auto_map})
    (tmp_path / "remote.py").write_text(TRAP, encoding="utf-8")
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.encode("hello") == byte_level().encode("hello").ids
    assert not (tmp_path / "ran").exists()


@pytest.mark.needs("transformers")
def test_model_code_beside_a_plain_tokenizer_is_no_obstacle(tmp_path: Path):
    write_folder(tmp_path, byte_level(), {})
    write_json(
        tmp_path / "config.json", {"model_type": "x", "auto_map": {"AutoModelForCausalLM": "remote.M"}}
    )
    tokenizer_of(tmp_path)


DAMAGE = {
    "tokenizer.json": (b"{", "tokenizer.json: not readable as JSON"),
    "tokenizer_config.json": (b"[1]", "must be a JSON object"),
    "config.json": (b"\xff", "not readable as JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str):
    write_folder(tmp_path, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast"})
    content, said = DAMAGE[name]
    (tmp_path / name).write_bytes(content)
    message = error_of(tmp_path)
    assert said in message
    assert str(tmp_path) in message


def test_unknown_class_without_tokenizer_json(tmp_path: Path):
    write_json(
        write_gpt2_vocabulary(tmp_path) / "tokenizer_config.json", {"tokenizer_class": "NoSuchTokenizer"}
    )
    assert "NoSuchTokenizer" in error_of(tmp_path)


def test_malformed_chat_template(tmp_path: Path):
    write_folder(tmp_path, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": 5})
    assert "chat_template" in error_of(tmp_path)


@pytest.mark.slow
def test_nothing_is_printed(tmp_path: Path):
    write_folder(tmp_path, sentencepiece_like(), {"tokenizer_class": "LlamaTokenizer", "model_max_length": 4})
    program = (
        "import sys; from pathlib import Path; from mindbatch.prompts.tokenizer import Tokenizer\n"
        "assert 'transformers' not in sys.modules\n"
        "t = Tokenizer.load(Path(sys.argv[1])); t.encode('hi ' * 50)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.skipif(not STORIES.is_dir(), reason="the published model is not beside the repository")
def test_published_llama_tokenizer():
    tokenizer = tokenizer_of(STORIES)
    ids = tokenizer.encode("Once upon a time 你 </s>")
    assert ids[0] == tokenizer.bos_token_id == 1
    assert not tokenizer.special_ids & set(ids[1:])
    assert tokenizer.decode(ids) == "Once upon a time 你 </s>"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[[[", "not readable as JSON: Expecting value: line 1 column 4 (char 3)"),
        ("[]", "found list; must be a JSON object"),
        ("{}", "has no object 'model'; must be a complete tokenizer"),
    ],
)
@pytest.mark.parametrize("named", ["GPT2Tokenizer", "PreTrainedTokenizerFast", "LlamaTokenizer"])
def test_a_damaged_tokenizer_json_is_named_without_transformers(
    content: str, reason: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "_load", None)  # it imports transformers
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": named})
    (tmp_path / "tokenizer.json").write_text(content)
    assert error_of(tmp_path) == f"{tmp_path}/tokenizer.json: {reason}"


@pytest.mark.parametrize(
    "settings", [{"tokenizer_class": "GPT2Tokenizer"}, {"bos_token": "x"}, {"model_max_length": 8}]
)
def test_settings_without_a_vocabulary_are_no_tokenizer(settings: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", settings)
    assert error_of(tmp_path).startswith(
        f"{tmp_path}/tokenizer_config.json: no vocabulary in the folder; must have one of"
    )


def test_an_ordinary_token_stays_one_though_a_list_of_transformers_5_names_it(tmp_path: Path) -> None:
    """5.x lists pieces that a sentencepiece model's author defined, which are not special."""
    backend = byte_level(["<|endoftext|>", "<|new|>"])
    backend.add_tokens([AddedToken("\n\n", special=False, normalized=False)])
    listed = ["\n\n", {"__type": "AddedToken", "content": "<|new|>"}]
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "backend": "tokenizers",
        "extra_special_tokens": listed,
    }
    tokenizer = tokenizer_of(write_folder(tmp_path, backend, settings))
    pair = backend.token_to_id("\n\n")
    assert tokenizer.encode("a\n\nb")[1:-1] == [pair]
    special = backend.token_to_id("<|new|>")
    assert tokenizer.decode([pair, special], skip_special_tokens=True) == "\n\n"


END = "<|endoftext|>"
SPECIAL = [END, "<|im_start|>", "<|im_end|>"]
END_FLAGS = {"content": END, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
GPT2 = {"tokenizer_class": "GPT2TokenizerFast"}
QWEN2 = {"tokenizer_class": "Qwen2Tokenizer"}
ANY = {"tokenizer_class": "PreTrainedTokenizerFast"}
LLAMA = {"tokenizer_class": "LlamaTokenizer", **dict.fromkeys(("unk_token", "bos_token", "eos_token"), END)}

PLAIN: dict[str, dict[str, Any]] = {
    "gpt2": {**GPT2, "bos_token": "<|im_start|>", "model_max_length": 2048, "errors": "replace"},
    "gpt2 without its defaults": {**GPT2, "bos_token": None, "unk_token": None},
    "qwen2": {**QWEN2, "eos_token": "<|im_end|>", "chat_template": CHATML, "add_bos_token": False},
    "qwen2 with tokens": {
        **QWEN2,
        "additional_special_tokens": ["<|im_start|>", {"__type": "AddedToken", "content": "<|im_end|>"}],
        "added_tokens_decoder": {"0": {**END_FLAGS, "special": True}},
        "pad_token": {"__type": "AddedToken", **END_FLAGS},
        "split_special_tokens": False,
    },
    "any": {**ANY, "unk_token": END, "clean_up_tokenization_spaces": True},
    "abstract": {"tokenizer_class": "PreTrainedTokenizer"},
    "llama": LLAMA,
    "llama with both ends": {
        **LLAMA,
        **{"tokenizer_class": "LlamaTokenizerFast", "eos_token": "<|im_end|>", "add_eos_token": True},
        **{"legacy": True, "use_default_system_prompt": False, "sp_model_kwargs": {}},
    },
    "llama with an end alone": {**LLAMA, "bos_token": None, "add_bos_token": False, "add_eos_token": True},
    "llama with nothing around a text": {**LLAMA, "add_bos_token": False},
    "gemma": {**LLAMA, "tokenizer_class": "GemmaTokenizer", "pad_token": END, "add_bos_token": True},
    "several templates": {**ANY, "chat_template": [{"name": "default", "template": CHATML}]},
    "sides": {**ANY, "padding_side": "left", "truncation_side": "left", "model_input_names": ["input_ids"]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "no class": {"eos_token": END},
    "a template without a name": {**ANY, "chat_template": [{"template": CHATML}]},
    "another class": {"tokenizer_class": "T5Tokenizer"},
    "tokens of Llama that are not in the file": {"tokenizer_class": "LlamaTokenizer"},
    "a start that is none": {**LLAMA, "bos_token": None},
    "a start that is no truth value": {**LLAMA, "add_bos_token": "yes"},
    "a space in front of Llama's": {**LLAMA, "add_prefix_space": True},
    "a space in front": {**GPT2, "add_prefix_space": True},
    "a token that is not in the file": {**ANY, "pad_token": "<pad>"},
    "one of several": {**ANY, "additional_special_tokens": ["<|im_end|>", "<pad>"]},
    "a token with other flags": {
        **QWEN2,
        "added_tokens_decoder": {"0": {**END_FLAGS, "special": True, "lstrip": True}},
    },
    "a further token": {**QWEN2, "added_tokens_decoder": {"400": {"content": "<new>"}}},
    "named besides": {**ANY, "extra_special_tokens": {"image_token": END}},
}


def content_of(found: LoadedTokenizer | None) -> tuple[Any, ...]:
    assert found is not None
    ids = found.bos_token_id, found.eos_token_id, found.unk_token_id
    return json.loads(found.backend.to_str()), ids, found.named_tokens, found.templates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path, byte_level(SPECIAL), None)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("settings", PLAIN.values(), ids=PLAIN)
def test_it_is_what_transformers_loads(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(folder, None, settings)
    plain = content_of(load_plain(folder, settings))
    monkeypatch.setattr(tokenizer_files, "load_plain", lambda *given: None)
    assert plain == content_of(tokenizer_files.load_tokenizer_files(folder))


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_what_transformers_would_change_is_left_to_it(folder: Path, settings: dict[str, Any]) -> None:
    write_folder(folder, None, settings)
    assert load_plain(folder, settings) is None


@pytest.mark.parametrize("name", ["added_tokens.json", "special_tokens_map.json"])
def test_further_files_are_left_to_it(folder: Path, name: str) -> None:
    write_folder(folder, None, GPT2)
    assert load_plain(folder, GPT2) is not None
    (folder / name).write_text("{}")
    assert load_plain(folder, GPT2) is None


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("content", [{"eos_token": "<|im_end|>"}, {"<new>": 400}])
def test_lists_of_tokens_beside_settings_that_list_them_are_without_effect(
    folder: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**GPT2, "added_tokens_decoder": {"0": {**END_FLAGS, "special": True}}}
    write_folder(folder, None, settings)
    write_json(
        folder / ("special_tokens_map.json" if "eos_token" in content else "added_tokens.json"), content
    )
    plain = content_of(load_plain(folder, settings))
    monkeypatch.setattr(tokenizer_files, "load_plain", lambda *given: None)
    assert plain == content_of(tokenizer_files.load_tokenizer_files(folder))


def test_a_tokenizer_that_pads_and_a_damaged_one_are_left_to_it(tmp_path: Path) -> None:
    backend = byte_level(SPECIAL)
    backend.enable_padding(pad_token=END)
    write_folder(tmp_path, backend, ANY)
    assert load_plain(tmp_path, ANY) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_plain(tmp_path, ANY) is None


def test_an_ordinary_token_of_that_text_is_not_enough(tmp_path: Path) -> None:
    backend = byte_level(SPECIAL)
    backend.add_tokens([AddedToken("<pad>", special=False)])
    write_folder(tmp_path, backend, {**ANY, "pad_token": "<pad>"})
    assert load_plain(tmp_path, {**ANY, "pad_token": "<pad>"}) is None


@pytest.mark.needs("transformers")
def test_the_template_of_a_file_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**GPT2, "chat_template": "other"}
    write_folder(folder, None, settings)
    (folder / "chat_template.jinja").write_bytes(CHATML.encode() + b"\r\n\xc3\xa9")
    plain = content_of(load_plain(folder, settings))
    monkeypatch.setattr(tokenizer_files, "load_plain", lambda *given: None)
    assert plain == content_of(tokenizer_files.load_tokenizer_files(folder))


def test_the_shipped_model_needs_neither_transformers_nor_mindspore() -> None:
    """Importing them takes longer than all else that a small model waits for."""
    program = (
        "import sys; from mindbatch import LLM; "
        f"text = LLM({str(ROOT / 'examples/tiny_gpt2')!r}).generate(['one, two,'], max_new_tokens=2); "
        "print({'transformers', 'mindspore', 'torch', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr
