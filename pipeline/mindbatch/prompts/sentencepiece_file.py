"""Tokenizers of sentencepiece's byte pair models, as the `tokenizers` library has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from mindbatch.errors import CheckpointError

SPACE = "▁"
_BYTE_PAIRS = 2  # TrainerSpec.model_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # SentencePiece.type


def sentencepiece_backend(data: bytes, path: Path) -> Backend:
    """The tokenizer of a model file: pairs are merged by the score of what they become.

    Spaces become U+2581, and one is put before the text. A character without a piece becomes its bytes.

    Raises:
        CheckpointError: lists what is no such model, or asks for what is not done here.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        model = sentencepiece_model_pb2.ModelProto.FromString(data)
    except DecodeError as error:
        raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
    if faults := _faults(model):
        raise CheckpointError(f"{path}: {fault}" for fault in faults)
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    scores = {each.piece: each.score for each in model.pieces if each.type in (_NORMAL, _USER_DEFINED)}
    unknown = next(each.piece for each in model.pieces if each.type == _UNKNOWN)
    backend = Backend(BPE(ids, merges_of(ids, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([each.piece for each in model.pieces if each.type in (_UNKNOWN, _CONTROL)])
    defined = [each.piece for each in model.pieces if each.type == _USER_DEFINED]
    backend.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in defined])
    return backend


def _faults(model: Any) -> list[str]:
    """Why a model is not taken."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    pieces = [each.piece for each in model.pieces]
    wanted = [
        ("trainer_spec.model_type", trainer.model_type, _BYTE_PAIRS),
        ("trainer_spec.byte_fallback", trainer.byte_fallback, True),
        ("trainer_spec.treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("normalizer_spec.precompiled_charsmap", bool(normalizer.precompiled_charsmap), False),
        ("normalizer_spec.add_dummy_prefix", normalizer.add_dummy_prefix, True),
        ("normalizer_spec.remove_extra_whitespaces", normalizer.remove_extra_whitespaces, False),
        ("normalizer_spec.escape_whitespaces", normalizer.escape_whitespaces, True),
        ("unknown pieces", sum(each.type == _UNKNOWN for each in model.pieces), 1),
        ("pieces that are there twice", len(pieces) - len({*pieces}), 0),
    ]
    return [f"{name}={found}; allowed: {only}" for name, found, only in wanted if found != only]


def merges_of(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs of pieces that make a piece, those with the highest score first.

    Of the pairs that make the same piece, the one that consists of earlier ids is first.

    ids: of the pieces, in the order of their numbers. scores: of those that text may become.
    """
    found = [
        (-score, ids[piece[:cut]], ids[piece[cut:]])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    names = [*ids]
    return [(names[left], names[right]) for _, left, right in sorted(found)]
