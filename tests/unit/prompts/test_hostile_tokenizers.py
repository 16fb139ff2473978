"""A tokenizer's files name nothing outside their folder, and honest ones give what transformers gives."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2
from small_tokenizers import (
    CHATML,
    byte_level,
    sentencepiece_like,
    tokenizer_of,
    unigram,
    write_folder,
    write_gpt2_vocabulary,
)
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

import ice_tokenizers
import pangu_tokenizers
from mindbatch.io.errors import CheckpointError, PromptError
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.prompts.tokenizer_files import load_tokenizer_files


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def loaded(folder: Path) -> LoadedTokenizer:
    found = load_tokenizer_files(folder)
    assert found is not None
    return found


def content(found: LoadedTokenizer) -> tuple[object, ...]:
    return found.backend.to_str(), found.named_tokens, found.templates


ADDED = {"5": {"content": "<|im_end|>", "special": True}, "400": {"content": "<new>", "lstrip": True}}
LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
HONEST: dict[str, tuple[Callable[[], Backend] | None, dict[str, Any]]] = {
    "gpt2": (byte_level, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
    "gpt2 without tokenizer.json": (None, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}),
    "llama legacy": (sentencepiece_like, {**LLAMA, "legacy": True, "add_eos_token": True}),
    "llama": (sentencepiece_like, {**LLAMA, "legacy": False, "add_bos_token": False}),
    "qwen2": (byte_level, {"tokenizer_class": "Qwen2Tokenizer", "split_special_tokens": True}),
    "qwen2 added": (byte_level, {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": ADDED}),
    "any": (
        byte_level,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "lstrip": True},
            "additional_special_tokens": ["<|a|>"],
            "extra_special_tokens": {"image_token": "<|image|>"},
            "model_max_length": 10**30,
            "chat_template": CHATML,
        },
    ),
}


def write_honest(folder: Path, kind: str) -> Path:
    backend, settings = HONEST[kind]
    write_folder(folder, backend and backend(), settings)
    if backend is None:
        write_gpt2_vocabulary(folder)
    return folder


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_folder_gives_what_transformers_gives(tmp_path: Path, kind: str, extras: bool) -> None:
    import transformers

    folder = write_honest(tmp_path / "model", kind)
    if extras:
        write_json(folder / "added_tokens.json", {"<more>": 401, "<evenmore>": 402})
        write_json(folder / "special_tokens_map.json", {"pad_token": {"content": "<more>", "rstrip": True}})
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/rag.jinja").write_text("{{ documents }}")
        (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    name = HONEST[kind][1]["tokenizer_class"].removesuffix("Fast") + "Fast"
    expected = getattr(transformers, name).from_pretrained(folder)
    found = loaded(folder)
    expected.backend_tokenizer.no_truncation()
    expected.backend_tokenizer.no_padding()
    assert found.backend.to_str() == expected.backend_tokenizer.to_str()
    assert found.named_tokens == expected.special_tokens_map
    assert (found.bos_token_id, found.eos_token_id) == (expected.bos_token_id, expected.eos_token_id)
    template = expected.chat_template
    assert found.templates == ({"default": template} if isinstance(template, str) else template or {})


# %s is a file with another vocabulary, or something worse.
REACHING: list[dict[str, Any]] = [
    {"vocab_file": "%s"},
    {"merges_file": "%s", "vocab_file": "%s"},
    {"tokenizer_file": "%s"},
    {"vocab_file": "%s", "from_slow": True},
    {"from_slow": True},
    {"vocab_file": "%s", "gguf_file": "%s"},
    {"init_inputs": ["%s"]},
    {"fast_tokenizer_files": ["%s"]},
    {"sp_model_kwargs": {"model_file": "%s"}},
    {"normalizer_file": "%s"},
    {"tokenizer_object": {}},
    {"__slow_tokenizer": {}},
    {"name_or_path": "%s", "auto_map": {"AutoTokenizer": ["%s", "%s"]}},
]
PLACES = ["https://mindbatch.invalid/vocab.json", "/dev/zero", "PIPE", "SECRET", "../SECRET"]


@pytest.mark.needs("transformers")
@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("kind", ["gpt2", "gpt2 without tokenizer.json", "llama legacy", "any"])
def test_no_key_names_a_file_or_an_address(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "SECRET").write_text(json.dumps({"secret": 0}))
    os.mkfifo(tmp_path / "PIPE")
    folder = write_honest(tmp_path / "model", kind)
    path = folder / name
    before = json.loads(path.read_bytes()) if path.exists() else {}
    honest = content(loaded(folder))
    together = {key: value for keys in REACHING for key, value in keys.items()}
    cases = [*REACHING, together] if kind == "gpt2" else [together]
    for place in PLACES:
        target = str(tmp_path / place) if place.isupper() else place
        for keys in cases:
            write_json(path, before | json.loads(json.dumps(keys).replace("%s", target)))
            assert content(loaded(folder)) == honest, (place, keys)


FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/rag.jinja",
    "config.json",
]


def link_out(path: Path) -> None:
    outside = path.parents[2] / "outside"
    outside.write_text("{}")
    path.symlink_to(outside)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "not a regular file"),
    "folder": (os.mkdir, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "must stay inside the model folder"),
    "link out": (link_out, "must stay inside the model folder"),
    "link to nothing": (lambda path: path.symlink_to(path.parent / "none"), "a broken symbolic link"),
    "huge": (huge, "bytes; at most"),
    "LFS pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs"),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", FILES)
def test_special_files_are_refused_by_name(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_honest(tmp_path / "a/model", "any")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    make, said = SPECIAL[kind]
    make(path)
    with pytest.raises(CheckpointError, match=said) as refused:
        load_tokenizer_files(folder)
    assert len(refused.value.lines) == 1
    assert str(path) in str(refused.value)


@pytest.mark.needs("transformers")
def test_a_folder_of_templates_outside_is_refused(tmp_path: Path) -> None:
    folder = write_honest(tmp_path / "model", "any")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/rag.jinja").write_text("{{ 1 }}")
    (folder / "additional_chat_templates").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="must stay inside the model folder"):
        load_tokenizer_files(folder)


@pytest.mark.needs("transformers")
def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    """snapshots/REVISION/name -> ../../blobs/HASH, also from a folder within."""
    snapshot, blobs = tmp_path / "snapshots/0123", tmp_path / "blobs"
    honest = write_honest(tmp_path / "plain", "any")
    (honest / "additional_chat_templates").mkdir()
    (honest / "additional_chat_templates/rag.jinja").write_text("{{ documents }}")
    expected = content(loaded(honest))
    blobs.mkdir()
    for number, path in enumerate([each for each in honest.rglob("*") if each.is_file()]):
        path.rename(blobs / str(number))
        link = snapshot / path.relative_to(honest)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    assert content(loaded(snapshot)) == expected


@pytest.mark.needs("transformers")
def test_only_tokenizers_are_taken_for_a_class(tmp_path: Path) -> None:
    for name in ("CLIPImageProcessor", "PretrainedConfig", "pipeline", "../x", "ViTImageProcessorFast"):
        write_folder(tmp_path, byte_level(), {"tokenizer_class": name})
        assert loaded(tmp_path).backend.encode("hello").ids == byte_level().encode("hello").ids


def test_a_deep_settings_file_is_one_line(tmp_path: Path) -> None:
    folder = write_honest(tmp_path, "any")
    (folder / "tokenizer_config.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: not readable as JSON"):
        load_tokenizer_files(folder)


FORGED = {"content": "<|im_end|>", "special": True, "\x1b[2J": 1}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"2": FORGED}},
        {"eos_token": {"__type": "AddedToken", **FORGED}},
        {"additional_special_tokens": [{"__type": "AddedToken", **FORGED}]},
        {"extra_special_tokens": {"end": {"__type": "AddedToken", **FORGED}}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_names_of_flags_do_not_reach_the_screen(
    tmp_path: Path, settings: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """The library prints those that it does not know, on standard output, as they are."""
    write_folder(tmp_path, byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    loaded(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_token_of_thousands_of_characters_is_refused(tmp_path: Path) -> None:
    """The library takes seconds for it."""
    write_folder(tmp_path, byte_level(), {**LLAMA, "bos_token": {"content": "界" * 3000}})
    with pytest.raises(CheckpointError, match="a token of 3000 characters; at most 1000 are allowed"):
        load_tokenizer_files(tmp_path)


def test_an_unknown_token_may_itself_be_unknown(tmp_path: Path) -> None:
    """transformers looks for it without end."""
    named = {"bos_token": "<|a|>", "eos_token": "<|im_end|>", "unk_token": "<|b|>"}
    found = kept(byte_level(), named, None, tmp_path)
    assert (found.unk_token_id, found.bos_token_id, found.eos_token_id) == (None, None, 2)


@pytest.mark.needs("transformers")
def test_a_text_that_the_vocabulary_cannot_spell_is_a_prompt_error(tmp_path: Path) -> None:
    backend = json.loads(unigram().to_str())
    backend["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(backend))
    tokenizer = tokenizer_of(tmp_path)
    with pytest.raises(PromptError, match="the tokenizer cannot encode it: .*unk_id"):
        tokenizer.encode("hello 世界")


def test_a_decoder_that_panics_on_short_tokens_is_refused(tmp_path: Path) -> None:
    backend = sentencepiece_like()
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)])
    write_folder(tmp_path, backend, {"tokenizer_class": "PreTrainedTokenizerFast"})
    with pytest.raises(CheckpointError, match="Strip with stop above 0"):
        Tokenizer.load(tmp_path)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    "settings", [{"tokenizer_class": "PreTrainedTokenizerFast"}, LLAMA], ids=["plain", "llama"]
)
@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tools.jinja"])
def test_a_template_that_is_not_utf8_is_refused_by_name(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    write_folder(tmp_path, sentencepiece_like(), settings)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer_files(tmp_path)
    assert caught.value.lines == (f"{tmp_path / name}: not valid UTF-8: byte 0xe9 at position 4",)


def test_a_post_processor_that_panics_is_a_prompt_error(tmp_path: Path) -> None:
    """It inserts a token that it does not list, which the library looks for when it encodes."""
    backend = json.loads(sentencepiece_like().to_str())
    listed = backend["post_processor"]["special_tokens"]
    listed["other"] = listed.pop("<s>")
    write_folder(tmp_path, None, {"tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(tmp_path / "tokenizer.json", backend)
    tokenizer = tokenizer_of(tmp_path)
    with pytest.raises(PromptError, match="the tokenizer cannot encode it: "):
        tokenizer.encode("hello")


def test_unknown_flags_of_added_tokens_are_dropped_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library prints their names on standard output, amid what is generated."""
    backend = json.loads(sentencepiece_like().to_str())
    backend["added_tokens"][0]["x"] = 1
    write_folder(tmp_path, None, LLAMA)
    write_json(tmp_path / "tokenizer.json", backend)
    assert loaded(tmp_path).backend.token_to_id("<s>") == 1
    assert capfd.readouterr().out == ""


FALSE = (0xFFFFFFF0).to_bytes(4, "little") + bytes(64)
REASON = "precompiled_charsmap: declares 4,294,967,280 bytes, but has 64"


def pieces(model: bytes, charsmap: bytes = FALSE) -> bytes:
    """A sentencepiece model with this table."""
    parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
    parsed.normalizer_spec.precompiled_charsmap = charsmap
    return bytes(parsed.SerializeToString())


def in_json(folder: Path, charsmap: bytes = FALSE, key: str = "precompiled_charsmap") -> Path:
    """A tokenizer.json with the table in a sequence of normalizers; the key as it is to be written."""
    content = json.loads(unigram().to_str())
    table = {"type": "Precompiled", "KEY": base64.b64encode(charsmap).decode()}
    content["normalizer"] = {"type": "Sequence", "normalizers": [table, {"type": "NFKC"}]}
    write_folder(folder, None, {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
    (folder / "tokenizer.json").write_text(json.dumps(content).replace("KEY", key))
    return folder / "tokenizer.json"


def in_spiece(folder: Path) -> Path:
    write_folder(folder, None, {"tokenizer_class": "T5Tokenizer"})
    (folder / "spiece.model").write_bytes(pieces(ice_tokenizers.model_file()))
    return folder / "spiece.model"


def in_ice(folder: Path) -> Path:
    ice_tokenizers.write(folder, pieces(ice_tokenizers.model_file()), num_image_tokens=0)
    return folder / "ice_text.model"


def in_pangu(folder: Path) -> Path:
    pangu_tokenizers.write(folder, pieces(pangu_tokenizers.model_file("unigram")))
    return folder / "vocab.model"


def in_escapes(folder: Path) -> Path:
    return in_json(folder, key=r"pre\u0063ompiled_charsmap")


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("make", [in_json, in_escapes, in_spiece, in_ice, in_pangu])
def test_a_table_that_is_cut_off_is_refused_by_name(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.lines == (f"{path}: {REASON}",)


def test_a_whole_table_is_taken(tmp_path: Path) -> None:
    model = sentencepiece_model_pb2.ModelProto.FromString(ice_tokenizers.model_file())
    in_json(tmp_path, model.normalizer_spec.precompiled_charsmap)
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.encode("hello") == tokenizer.encode("ｈello")
