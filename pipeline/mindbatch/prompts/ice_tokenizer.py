"""The tokenizer of ChatGLM-6B: sentencepiece's unigram model with tokens for white space and an offset.

Source: the behaviour of tokenization_chatglm.py in the published folder, in its last release.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import has_file
from mindbatch.io.errors import CheckpointError, is_panic
from mindbatch.io.fault_lines import shown
from mindbatch.prompts.glm_tokenizer import CHATGLM_6B
from mindbatch.prompts.sentencepiece_file import (
    CONTROL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    faults_of,
    lowest_score,
    normalization_faults,
    normalized,
    parsed_model,
    unigram_scores,
)
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer_folder import SETTINGS, checked_copy, one_line

VOCABULARY = "ice_text.model"
END = ("[gMASK]", "<sop>")
"""Tokens that every prompt ends with: the mask whose place the output takes, and the one that begins it."""
SPECIAL = ("[MASK]", "[sMASK]", "<eop>", *END)
_MOST_IMAGES = 1 << 17
_IMAGES = 20000  # where the settings say nothing
_LONGEST_BLANK = 80


def load_ice(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """The folder's tokenizer; None where its settings do not name the class, or it has no ice_text.model.

    Raises:
        CheckpointError: a damaged file, or one that asks for what is not done here.
    """
    if settings.get("tokenizer_class") != "ChatGLMTokenizer" or not has_file(folder, VOCABULARY):
        return None
    with checked_copy(folder, [VOCABULARY]) as copy:
        data = (copy / VOCABULARY).read_bytes()
        checked = json.loads((copy / SETTINGS).read_bytes())
    images = settings.get("num_image_tokens", _IMAGES)
    if isinstance(images, bool) or not isinstance(images, int) or not 0 <= images <= _MOST_IMAGES:
        raise CheckpointError(
            f"{folder / SETTINGS}: num_image_tokens={shown(images)}: must be a whole number, 0 to "
            f"{_MOST_IMAGES}"
        )
    backend = ice_backend(data, folder / VOCABULARY, images)
    named = {"bos_token": "<sop>", "eos_token": "<eop>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return kept(backend, named, checked.get("chat_template") or CHATGLM_6B, folder)


def ice_backend(data: bytes, path: Path, images: int) -> Backend:
    """The tokenizer of a model file, whose pieces are numbered from `images` on.

    Raises:
        CheckpointError: lists what is no such model, or asks for what is not done here.
    """
    model = parsed_model(data, path)
    pieces = {piece.piece: number for number, piece in enumerate(model.pieces, start=images)}
    own = [
        ("trainer_spec.model_type", model.trainer_spec.model_type, UNIGRAM),
        ("trainer_spec.byte_fallback", model.trainer_spec.byte_fallback, True),
        ("unused pieces", sum(piece.type == UNUSED for piece in model.pieces), 0),
    ]
    faults = [*faults_of(model, own), *normalization_faults(model.normalizer_spec)]
    if missing := [token for token in (*SPECIAL, *_white_space().values()) if token not in pieces]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        faults.append(f"no piece {', '.join(missing[:3])}{more}; a file of a later release has them")
    if faults:
        raise CheckpointError(f"{path}: {fault}" for fault in faults)
    try:
        return _built(model, pieces, images)
    except BaseException as error:  # tokenizers raises nothing more special
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(f"{path}: {one_line(error)}") from error


def _built(model: Any, pieces: Mapping[str, int], images: int) -> Backend:
    special = [
        piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL) or piece.piece in SPECIAL
    ]
    unknown = next(pieces[piece.piece] for piece in model.pieces if piece.type == UNKNOWN)
    lowest = lowest_score(model)
    scores = [*((f"<image_{number}>", lowest) for number in range(images)), *unigram_scores(model)]
    backend = Backend(Unigram(scores, unk_id=unknown, byte_fallback=True))
    white = (normalizers.Replace(white, piece) for white, piece in _white_space().items())
    backend.normalizer = normalizers.Sequence([*white, *normalized(model.normalizer_spec)])
    backend.pre_tokenizer = _broken(special)
    backend.decoder = _decoder(images)
    backend.add_special_tokens(special)
    ends = [(token, pieces[token]) for token in END]
    backend.post_processor = TemplateProcessing(single=["$A", *END], special_tokens=ends)
    return backend


def _broken(special: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts what is written as a special piece, a byte or an image behind its first character: it is text."""
    kinds = [(piece[0], re.escape(piece[1:])) for piece in special]
    kinds += [("<", "0x[0-9A-F]{2}>"), ("<", r"image_\d+>")]
    pattern = "|".join(f"{re.escape(first)}(?={rest})" for first, rest in kinds)
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")


def _white_space() -> dict[str, str]:
    """White space, and the pieces that stand for it, the longest first."""
    blanks = {" " * count: f"<|blank_{count}|>" for count in range(_LONGEST_BLANK, 1, -1)}
    return {"\n": "<n>", "\t": "<|tab|>", **blanks}


def _decoder(images: int) -> decoders.Decoder:
    written = [decoders.Replace(piece, white) for white, piece in _white_space().items()]
    if images:
        written.append(decoders.Replace(Regex(r"<image_\d+>"), ""))
    first = decoders.Metaspace(SPACE, prepend_scheme="first")
    return decoders.Sequence([first, decoders.ByteFallback(), *written, decoders.Fuse()])
