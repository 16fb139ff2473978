"""Tokenizers of sentencepiece's byte pair models, as the `tokenizers` library has them."""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from mindbatch.checkpoint.error_lines import shown
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.tokenizer_rules import MOST_GROWTH, longest_replacement, token_errors

_KEY = "precompiled_charsmap"
_SIZE_BYTES = 4
# As it is written; or written with escapes of letters, which nobody needs.
_MAY_HOLD = re.compile(rb"precompiled_charsmap|\\u00(?:5[fF]|6|7)")


def refuse_false_charsmap(charsmap: bytes, path: Path) -> None:
    """CheckpointError where a table, which begins with the bytes of its trie, says that it is larger than it
    is (`tokenizers` would take twice as much memory, up to 8 GiB), or makes long texts of a character."""
    size, there = int.from_bytes(charsmap[:_SIZE_BYTES], "little"), len(charsmap) - _SIZE_BYTES
    if charsmap and size > there:
        raise CheckpointError(f"{path}: {_KEY}: says that {size:,} bytes follow; there are {max(there, 0):,}")
    if charsmap and (longest := longest_replacement(charsmap)) > MOST_GROWTH:
        raise CheckpointError(
            f"{path}: {_KEY}: makes up to {longest:,} characters of one; at most {MOST_GROWTH} are allowed"
        )


def refuse_false_charsmaps(data: bytes, path: Path) -> None:
    """Refuses such tables wherever a vocabulary's file has them; a damaged file is passed over."""
    if path.suffix == ".model":
        try:
            model = _model_in(data)
        except ValueError:  # tiktoken's file may have the same name
            return
        refuse_false_charsmap(model.normalizer_spec.precompiled_charsmap, path)
        own = (piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL, USER_DEFINED))
        if errors := token_errors(own):
            raise CheckpointError(f"{path}: {error}" for error in errors)
    elif path.suffix == ".json" and _MAY_HOLD.search(data):
        _refuse_in_json(data, path)


def _refuse_in_json(data: bytes, path: Path) -> None:
    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key != _KEY or not isinstance(value, str):
                continue
            try:
                charsmap = base64.b64decode(value)
            except ValueError:  # whoever uses it refuses it
                continue
            refuse_false_charsmap(charsmap, path)

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return


def _model_in(data: bytes) -> Any:
    """The ModelProto of a file's bytes. ValueError: they are none."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        return sentencepiece_model_pb2.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # one or the other, as protobuf is built
        raise ValueError(str(error)) from error


SPACE = "▁"
UNIGRAM, BYTE_PAIRS = 1, 2  # TrainerSpec.model_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # SentencePiece.type
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
_MOST_CHARACTERS = 1000  # pairs that make a piece are looked for in a time that grows faster than it does
_CHOSEN = -0.1  # the score with which sentencepiece prefers a user-defined piece to any others


def sentencepiece_backend(data: bytes, path: Path) -> Backend:
    """The tokenizer of a model file: pairs are merged by the score of what they become.

    Spaces become U+2581, and one is put before the text. A character without a piece becomes its bytes.

    Raises:
        CheckpointError: lists what is no such model, or asks for what is not done here.
    """
    model = parsed_model(data, path)
    spec = model.normalizer_spec
    own = [
        ("trainer_spec.model_type", model.trainer_spec.model_type, BYTE_PAIRS),
        ("normalizer_spec.precompiled_charsmap", bool(spec.precompiled_charsmap), False),
        ("normalizer_spec.remove_extra_whitespaces", spec.remove_extra_whitespaces, False),
        ("trainer_spec.byte_fallback", model.trainer_spec.byte_fallback, True),
    ]
    if errors := errors_of(model, own):
        raise CheckpointError(f"{path}: {error}" for error in errors)
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)}
    unknown = next(piece.piece for piece in model.pieces if piece.type == UNKNOWN)
    backend = Backend(BPE(ids, merges_of(ids, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    # One that has a space itself is never found: where it is looked for there are none.
    defined_pieces = (piece.piece for piece in model.pieces if piece.type == USER_DEFINED)
    defined = [piece for piece in defined_pieces if " " not in piece]
    backend.normalizer = normalizers.Sequence([*_normalizers(defined)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL)])
    backend.add_tokens([AddedToken(piece, normalized=True, special=False) for piece in defined])
    return backend


def _normalizers(defined: Iterable[str]) -> Iterable[normalizers.Normalizer]:
    """A space before the text, but none before a defined piece alone.

    Defined pieces are found in what is normalized, so that no space comes behind one; as they are normalized
    themselves, they must stay as they are.
    """
    yield normalizers.Prepend(SPACE)
    yield normalizers.Replace(" ", SPACE)
    if alternatives := "|".join(re.escape(piece) for piece in defined):
        yield normalizers.Replace(Regex(rf"\A{SPACE}(?=(?:{alternatives})\z)"), "")


def parsed_model(data: bytes, path: Path) -> Any:
    """The ModelProto of a file's bytes. CheckpointError: they are none, or its table is cut off."""
    try:
        model = _model_in(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
    refuse_false_charsmap(model.normalizer_spec.precompiled_charsmap, path)
    return model


def errors_of(model: Any, own: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """Lists why a model is not supported. own: more checks for a kind of model: setting, found, allowed."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    pieces = [piece.piece for piece in model.pieces]
    wanted = [
        *own,
        ("trainer_spec.treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("normalizer_spec.add_dummy_prefix", normalizer.add_dummy_prefix, True),
        ("normalizer_spec.escape_whitespaces", normalizer.escape_whitespaces, True),
        ("unknown pieces", sum(piece.type == UNKNOWN for piece in model.pieces), 1),
        ("pieces that are no text", sum(not isinstance(text, str) for text in pieces), 0),
        (
            f"pieces of over {_MOST_CHARACTERS} characters",
            sum(len(text) > _MOST_CHARACTERS for text in pieces),
            0,
        ),
        ("pieces without a score", sum(not math.isfinite(piece.score) for piece in model.pieces), 0),
        ("pieces that are there twice", len(pieces) - len({*pieces}), 0),
    ]
    return [f"{name}={value}; allowed: {only}" for name, value, only in wanted if value != only]


def merges_of(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs of pieces that make a piece, those with the highest score first.

    Of the pairs that make the same piece, the one that consists of earlier ids is first.

    ids: of the pieces, in the order of their numbers. scores: of those that text may become.
    """
    splits = [
        (-score, ids[piece[:cut]], ids[piece[cut:]])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    names = [*ids]
    return [(names[left], names[right]) for _, left, right in sorted(splits)]


def unigram_scores(model: Any) -> list[tuple[str, float]]:
    """The pieces of a unigram model with their scores. Those that no text becomes have the lowest."""
    lowest = lowest_score(model)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:
            return _CHOSEN
        return float(piece.score) if piece.type == NORMAL else lowest

    return [(piece.piece, score(piece)) for piece in model.pieces]


def lowest_score(model: Any) -> float:
    """Returns the lowest score among the pieces of texts (NORMAL); it says nothing of others."""
    return min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)


def normalization_errors(spec: Any) -> list[str]:
    """Lists the rules of a NormalizerSpec that `normalized` does not follow."""
    if spec.name in _NORMALIZATIONS:
        return []
    return [f"normalizer_spec.name={shown(spec.name)}; allowed: {', '.join(_NORMALIZATIONS)}"]


def normalized(spec: Any) -> Iterable[normalizers.Normalizer]:
    """From a text to pieces' characters, as a NormalizerSpec says, in sentencepiece's order.

    Its table of NFKC is applied to what NFKC has composed: `tokenizers` looks up single characters there.
    """
    if spec.precompiled_charsmap:
        yield normalizers.NFKC()
        yield normalizers.Precompiled(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(r"\A +"), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    yield normalizers.Prepend(SPACE)
    yield normalizers.Replace(" ", SPACE)
    if spec.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(rf"{SPACE}+\z"), "")
