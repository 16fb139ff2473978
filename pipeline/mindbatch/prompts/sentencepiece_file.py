"""Builds tokenizers of the `tokenizers` library from SentencePiece models."""

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
from mindbatch.prompts.tokenizer_rules import MAX_GROWTH, longest_replacement, token_errors

_KEY = "precompiled_charsmap"
_SIZE_BYTES = 4
# Plain, or with escaped letters.
_MAY_HOLD = re.compile(rb"precompiled_charsmap|\\u00(?:5[fF]|6|7)")


def refuse_false_charsmap(charsmap: bytes, path: Path) -> None:
    """Raises CheckpointError if the declared size of the table's trie is larger than the table, for which
    `tokenizers` would allocate up to 8 GiB, or if it replaces a character by a long text."""
    size, actual = int.from_bytes(charsmap[:_SIZE_BYTES], "little"), len(charsmap) - _SIZE_BYTES
    if charsmap and size > actual:
        raise CheckpointError(f"{path}: {_KEY}: declares {size:,} bytes, but has {max(actual, 0):,}")
    if charsmap and (longest := longest_replacement(charsmap)) > MAX_GROWTH:
        raise CheckpointError(
            f"{path}: {_KEY}: turns one character into up to {longest:,}; at most {MAX_GROWTH} are allowed"
        )


def refuse_false_charsmaps(data: bytes, path: Path) -> None:
    """Refuses such tables in any vocabulary file; a damaged file is ignored."""
    if path.suffix == ".model":
        try:
            model = _model_in(data)
        except ValueError:  # tiktoken uses the same file name
            return
        refuse_false_charsmap(model.normalizer_spec.precompiled_charsmap, path)
        control = (piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL, USER_DEFINED))
        if errors := token_errors(control):
            raise CheckpointError(f"{path}: {error}" for error in errors)
    elif path.suffix == ".json" and _MAY_HOLD.search(data):
        _refuse_in_json(data, path)


def _refuse_in_json(data: bytes, path: Path) -> None:
    def check(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key != _KEY or not isinstance(value, str):
                continue
            try:
                charsmap = base64.b64decode(value)
            except ValueError:  # its reader refuses it
                continue
            refuse_false_charsmap(charsmap, path)

    try:
        json.loads(data, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return


def _model_in(data: bytes) -> Any:
    """Parses a ModelProto. Raises ValueError if the bytes are not one."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        return sentencepiece_model_pb2.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # depends on the build of protobuf
        raise ValueError(str(error)) from error


SPACE = "▁"
UNIGRAM, BYTE_PAIRS = 1, 2  # TrainerSpec.model_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # SentencePiece.type
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
_MAX_CHARACTERS = 1000  # the search for a piece's pairs is superlinear in its length
_CHOSEN = -0.1  # the score with which sentencepiece prefers a user-defined piece to any others


def sentencepiece_backend(data: bytes, path: Path) -> Backend:
    """Builds the tokenizer of a BPE model, which merges pairs in the order of their result's score.

    Spaces become U+2581, and one is put before the text. A character without a piece becomes its bytes.

    Raises:
        CheckpointError: lists all settings that are invalid or not supported.
    """
    model = parsed_model(data, path)
    spec = model.normalizer_spec
    checks = [
        ("trainer_spec.model_type", model.trainer_spec.model_type, BYTE_PAIRS),
        ("normalizer_spec.precompiled_charsmap", bool(spec.precompiled_charsmap), False),
        ("normalizer_spec.remove_extra_whitespaces", spec.remove_extra_whitespaces, False),
        ("trainer_spec.byte_fallback", model.trainer_spec.byte_fallback, True),
    ]
    if errors := errors_of(model, checks):
        raise CheckpointError(f"{path}: {error}" for error in errors)
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)}
    unknown = next(piece.piece for piece in model.pieces if piece.type == UNKNOWN)
    backend = Backend(BPE(ids, merges_of(ids, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    # A piece with a space never matches, because the normalised text has none.
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
    """Yields normalizers that put a space before the text, unless it is a user-defined piece alone.

    User-defined pieces are matched in the normalised text, so that no space is put after one. The
    normalizers must not change the pieces themselves, which are normalised, too.
    """
    yield normalizers.Prepend(SPACE)
    yield normalizers.Replace(" ", SPACE)
    if alternatives := "|".join(re.escape(piece) for piece in defined):
        yield normalizers.Replace(Regex(rf"\A{SPACE}(?=(?:{alternatives})\z)"), "")


def parsed_model(data: bytes, path: Path) -> Any:
    """Parses a ModelProto. Raises CheckpointError if it is invalid or its table is truncated."""
    try:
        model = _model_in(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
    refuse_false_charsmap(model.normalizer_spec.precompiled_charsmap, path)
    return model


def errors_of(model: Any, checks: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """Lists why a model is not supported. checks: (setting, value, allowed value) of this kind of model."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    pieces = [piece.piece for piece in model.pieces]
    all_checks = [
        *checks,
        ("trainer_spec.treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("normalizer_spec.add_dummy_prefix", normalizer.add_dummy_prefix, True),
        ("normalizer_spec.escape_whitespaces", normalizer.escape_whitespaces, True),
        ("unknown pieces", sum(piece.type == UNKNOWN for piece in model.pieces), 1),
        ("pieces that are not text", sum(not isinstance(text, str) for text in pieces), 0),
        (
            f"pieces of over {_MAX_CHARACTERS} characters",
            sum(len(text) > _MAX_CHARACTERS for text in pieces),
            0,
        ),
        ("pieces without a score", sum(not math.isfinite(piece.score) for piece in model.pieces), 0),
        ("duplicate pieces", len(pieces) - len({*pieces}), 0),
    ]
    return [f"{name}={value}; allowed: {allowed}" for name, value, allowed in all_checks if value != allowed]


def merges_of(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces that merge to a piece, the highest score first.

    Of pairs with the same result, the one with the lower ids is first.

    ids: ids by piece, in ascending order.
    scores: scores of the pieces that merges may use.
    """
    splits = [
        (-score, ids[piece[:split]], ids[piece[split:]])
        for piece, score in scores.items()
        for split in range(1, len(piece))
        if piece[:split] in scores and piece[split:] in scores
    ]
    names = [*ids]
    return [(names[left], names[right]) for _, left, right in sorted(splits)]


def unigram_scores(model: Any) -> list[tuple[str, float]]:
    """Returns the pieces of a unigram model with their scores; pieces that are not text get the lowest."""
    lowest = lowest_score(model)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:
            return _CHOSEN
        return float(piece.score) if piece.type == NORMAL else lowest

    return [(piece.piece, score(piece)) for piece in model.pieces]


def lowest_score(model: Any) -> float:
    """Returns the lowest score of the NORMAL pieces."""
    return min((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)


def normalization_errors(spec: Any) -> list[str]:
    """Lists the rules of a NormalizerSpec that `normalized` does not support."""
    if spec.name in _NORMALIZATIONS:
        return []
    return [f"normalizer_spec.name={shown(spec.name)}; allowed: {', '.join(_NORMALIZATIONS)}"]


def normalized(spec: Any) -> Iterable[normalizers.Normalizer]:
    """Yields the normalizers of a NormalizerSpec in SentencePiece's order.

    NFKC is applied before its precompiled table, because `tokenizers` looks up single characters there.
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
