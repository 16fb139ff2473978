"""Tokenizers of tiktoken's files of ranks, as the `tokenizers` library has them."""

from __future__ import annotations

import base64
from pathlib import Path

from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.sentencepiece_file import merges_of
from mindbatch.prompts.token_bytes import byte_level_alphabet


def tiktoken_backend(data: bytes, path: Path, pattern: str) -> Backend:
    """The tokenizer of a file with a token in base64 and its rank, which is its id, in each line.

    pattern: the regular expression of the parts of a text; pairs of bytes are merged within them.

    Raises:
        CheckpointError: another line, or ranks that are not 0, 1, 2..., or a byte without a token.
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
    """Decodes the tokens, by rank."""
    by_rank: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            encoded, rank = line.split()
            if int(rank) != len(by_rank):
                raise CheckpointError(
                    f"{path}, line {number}: rank {int(rank)}; must be {len(by_rank)}, one after the other"
                )
            by_rank.append(base64.b64decode(encoded, validate=True))
        except ValueError:
            raise CheckpointError(
                f"{path}, line {number}: must be a token in base64 and its rank, found {line[:40]!a}"
            ) from None
    if len({*by_rank}) < len(by_rank) or b"" in by_rank:
        raise CheckpointError(f"{path}: a token is there twice, or empty")
    return by_rank
