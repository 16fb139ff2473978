"""Builds the tokenizers of ChatGLM, ChatGLM2, ChatGLM3 and the first GLM-4 without the folders' own code.

Source: the behaviour of tokenization_chatglm.py in the published folders.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.sentencepiece_file import (
    CONTROL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    errors_of,
    lowest_score,
    merges_of,
    normalization_errors,
    normalized,
    parsed_model,
    sentencepiece_backend,
    unigram_scores,
)
from mindbatch.prompts.token_bytes import LoadedTokenizer, byte_level_alphabet, kept
from mindbatch.prompts.tokenizer_folder import SETTINGS, checked_files, library_errors_as, read_json_file


def tiktoken_backend(data: bytes, path: Path, pattern: str) -> Backend:
    """Builds the tokenizer of a file whose lines have a token in base64 and its rank, which is its id.

    pattern: the regular expression that divides a text into the parts within which bytes are merged.

    Raises:
        CheckpointError: a line is malformed, ranks are not 0, 1, 2..., or a byte has no token.
    """
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    ids = {
        "".join(map(characters.__getitem__, token)): rank for rank, token in enumerate(_tokens(data, path))
    }
    if missing := [byte for byte, character in characters.items() if character not in ids]:
        raise CheckpointError(f"{path}: no token for the byte {missing[0]}; all 256 are needed")
    merges = merges_of(ids, {token: -rank for token, rank in ids.items()})
    backend = Backend(BPE(ids, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _tokens(data: bytes, path: Path) -> list[bytes]:
    by_rank: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            encoded, rank = line.split()
            if int(rank) != len(by_rank):
                raise CheckpointError(f"{path}, line {number}: rank {int(rank)}; must be {len(by_rank)}")
            by_rank.append(base64.b64decode(encoded, validate=True))
        except ValueError:
            raise CheckpointError(
                f"{path}, line {number}: must be a token in base64 and its rank, found {line[:40]!a}"
            ) from None
    if len({*by_rank}) < len(by_rank) or b"" in by_rank:
        raise CheckpointError(f"{path}: a token is duplicated or empty")
    return by_rank


_IN_TURN = (
    "{% for message in messages %}{% if message['role'] != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('messages must alternate between user and assistant, the user first') }}{% endif %}"
    "{% if add_generation_prompt and loop.last and message['role'] != 'user' %}"
    "{{ raise_exception('the last message must be from the user') }}{% endif %}{% endfor %}"
)
CHATGLM_6B = (
    f"{_IN_TURN}{{% for message in messages %}}"
    "{% if messages | length == 1 %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '[Round ' ~ loop.index0 // 2 ~ ']\\n问：' ~ message['content'] ~ '\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[gMASK]<sop>{% endif %}"
)
"""Rounds are numbered from 0; a single question stands alone."""
CHATGLM2 = (
    f"{_IN_TURN}[gMASK]sop{{% for message in messages %}}"
    "{% if message['role'] == 'user' %}"
    "{{ '[Round ' ~ (loop.index0 // 2 + 1) ~ ']\\n\\n问：' ~ message['content'] ~ '\\n\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n\\n' }}{% endif %}{% endfor %}"
)


VOCABULARY = "tokenizer.model"
SENTENCEPIECE, TIKTOKEN = "ChatGLMTokenizer", "ChatGLM4Tokenizer"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")  # of ChatGLM3, unused in ChatGLM2
COMMANDS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *ROLES)
"""Tokens whose ids follow the pieces of the SentencePiece model."""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression by which GLM-4 divides a text."""


def load_glm(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """Loads the folder's tokenizer; None if its settings name neither class, or it has no tokenizer.model.

    Raises:
        CheckpointError: a file is damaged or of another kind of tokenizer.
    """
    name = settings.get("tokenizer_class")
    if name not in (SENTENCEPIECE, TIKTOKEN) or not has_file(folder, VOCABULARY):
        return None
    files = checked_files(folder, [VOCABULARY])
    data, checked = files[VOCABULARY], json.loads(files[SETTINGS])
    path = folder / VOCABULARY
    if name == SENTENCEPIECE:
        backend = sentencepiece_backend(data, path)
        backend.add_special_tokens(list(COMMANDS))
        start, named = ("[gMASK]", "sop"), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    else:
        backend = tiktoken_backend(data, path, PATTERN)
        _add_listed(backend, checked.get("added_tokens_decoder"), folder)
        start, named = ("[gMASK]", "<sop>"), {"eos_token": "<|endoftext|>"}
    _put_before_texts(backend, start, path)
    return kept(backend, named, checked.get("chat_template") or _default_template(folder), folder)


def _default_template(folder: Path) -> str | None:
    """Returns ChatGLM2's template if config.json names that model; ChatGLM3 has the same class."""
    name = read_json_file(folder, CONFIG_NAME).get("_name_or_path")
    return CHATGLM2 if isinstance(name, str) and "chatglm2" in name.lower() else None


def _add_listed(backend: Backend, listed: Any, folder: Path) -> None:
    """Adds the tokens that the settings list by id; the ids must follow the file's own."""
    try:
        numbers = sorted(map(int, listed))
        tokens = [AddedToken(**listed[str(number)]) for number in numbers]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder must have a token with its flags for each number"
        ) from error
    first = backend.get_vocab_size()
    if numbers != [*range(first, first + len(numbers))]:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder has {len(numbers)} tokens from {numbers[:1]} on; "
            f"must be the ids after those of {VOCABULARY}, from {first} on, without gaps"
        )
    backend.add_tokens(tokens)


def _put_before_texts(backend: Backend, start: tuple[str, str], path: Path) -> None:
    ids = [(token, backend.token_to_id(token)) for token in start]
    if missing := [token for token, number in ids if number is None]:
        raise CheckpointError(f"{path}: no token {' and '.join(missing)}, with which every text starts")
    backend.post_processor = TemplateProcessing(single=[*start, "$A"], special_tokens=ids)


ICE_VOCABULARY = "ice_text.model"
ICE_END = ("[gMASK]", "<sop>")
"""Tokens at the end of every prompt: the mask that the output replaces, and the output's start."""
ICE_SPECIAL = ("[MASK]", "[sMASK]", "<eop>", *ICE_END)
_MAX_IMAGES = 1 << 17
_IMAGES = 20000  # the default of the settings
_LONGEST_BLANK = 80


def load_ice(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """Loads the folder's tokenizer; None if its settings do not name the class, or it has no ice_text.model.

    Raises:
        CheckpointError: a file is damaged, or has settings that are not supported.
    """
    if settings.get("tokenizer_class") != "ChatGLMTokenizer" or not has_file(folder, ICE_VOCABULARY):
        return None
    files = checked_files(folder, [ICE_VOCABULARY])
    checked = json.loads(files[SETTINGS])
    images = settings.get("num_image_tokens", _IMAGES)
    if isinstance(images, bool) or not isinstance(images, int) or not 0 <= images <= _MAX_IMAGES:
        raise CheckpointError(
            f"{folder / SETTINGS}: num_image_tokens={shown(images)}: must be a whole number, 0 to "
            f"{_MAX_IMAGES}"
        )
    backend = ice_backend(files[ICE_VOCABULARY], folder / ICE_VOCABULARY, images)
    named = {"bos_token": "<sop>", "eos_token": "<eop>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return kept(backend, named, checked.get("chat_template") or CHATGLM_6B, folder)


def ice_backend(data: bytes, path: Path, images: int) -> Backend:
    """Builds the tokenizer of a model file, whose pieces have ids from `images` on.

    Raises:
        CheckpointError: lists all settings that are invalid or not supported.
    """
    model = parsed_model(data, path)
    pieces = {piece.piece: number for number, piece in enumerate(model.pieces, start=images)}
    checks = [
        ("trainer_spec.model_type", model.trainer_spec.model_type, UNIGRAM),
        ("trainer_spec.byte_fallback", model.trainer_spec.byte_fallback, True),
        ("unused pieces", sum(piece.type == UNUSED for piece in model.pieces), 0),
    ]
    errors = [*errors_of(model, checks), *normalization_errors(model.normalizer_spec)]
    if missing := [token for token in (*ICE_SPECIAL, *_white_space().values()) if token not in pieces]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        errors.append(f"no piece {', '.join(missing[:3])}{more}; a file of a later release has them")
    if errors:
        raise CheckpointError(f"{path}: {error}" for error in errors)
    with library_errors_as(CheckpointError, path):
        return _ice_built(model, pieces, images)


def _ice_built(model: Any, pieces: Mapping[str, int], images: int) -> Backend:
    special = [
        piece.piece
        for piece in model.pieces
        if piece.type in (UNKNOWN, CONTROL) or piece.piece in ICE_SPECIAL
    ]
    unknown = next(pieces[piece.piece] for piece in model.pieces if piece.type == UNKNOWN)
    lowest = lowest_score(model)
    scores = [*((f"<image_{number}>", lowest) for number in range(images)), *unigram_scores(model)]
    backend = Backend(Unigram(scores, unk_id=unknown, byte_fallback=True))
    white = (normalizers.Replace(white, piece) for white, piece in _white_space().items())
    backend.normalizer = normalizers.Sequence([*white, *normalized(model.normalizer_spec)])
    backend.pre_tokenizer = _ice_text_only(special)
    backend.decoder = _ice_decoder(images)
    backend.add_special_tokens(special)
    ends = [(token, pieces[token]) for token in ICE_END]
    backend.post_processor = TemplateProcessing(single=["$A", *ICE_END], special_tokens=ends)
    return backend


def _ice_text_only(special: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Splits the spelling of special pieces, bytes and images after one character, so that it stays text."""
    kinds = [(piece[0], re.escape(piece[1:])) for piece in special]
    kinds += [("<", "0x[0-9A-F]{2}>"), ("<", r"image_\d+>")]
    pattern = "|".join(f"{re.escape(first)}(?={rest})" for first, rest in kinds)
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")


def _white_space() -> dict[str, str]:
    """Returns runs of white space and their pieces, the longest first."""
    blanks = {" " * count: f"<|blank_{count}|>" for count in range(_LONGEST_BLANK, 1, -1)}
    return {"\n": "<n>", "\t": "<|tab|>", **blanks}


def _ice_decoder(images: int) -> decoders.Decoder:
    written = [decoders.Replace(piece, white) for white, piece in _white_space().items()]
    if images:
        written.append(decoders.Replace(Regex(r"<image_\d+>"), ""))
    first = decoders.Metaspace(SPACE, prepend_scheme="first")
    return decoders.Sequence([first, decoders.ByteFallback(), *written, decoders.Fuse()])
