"""Refuses tables of normalization whose own sizes are not true, before `tokenizers` takes memory for them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any

from mindbatch.io.errors import CheckpointError

_KEY = "precompiled_charsmap"
_SIZE_BYTES = 4
# As it is written; or written with escapes of letters, which nobody needs.
_MAY_HOLD = re.compile(rb"precompiled_charsmap|\\u00(?:5[fF]|6|7)")


def refuse_false_charsmap(charsmap: bytes, path: Path) -> None:
    """CheckpointError where a table, which begins with the bytes of its trie, says that it is larger than it
    is; `tokenizers` would take twice as much memory, up to 8 GiB."""
    size, there = int.from_bytes(charsmap[:_SIZE_BYTES], "little"), len(charsmap) - _SIZE_BYTES
    if charsmap and size > there:
        raise CheckpointError(f"{path}: {_KEY}: says that {size:,} bytes follow; there are {max(there, 0):,}")


def refuse_false_charsmaps(data: bytes, path: Path) -> None:
    """Refuses such tables wherever a vocabulary's file has them; a damaged file is passed over."""
    if path.suffix == ".model":
        refuse_false_charsmap(_charsmap_of_pieces(data), path)
    elif path.suffix == ".json" and _MAY_HOLD.search(data):
        _refuse_in_json(data, path)


def _refuse_in_json(data: bytes, path: Path) -> None:
    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if key == _KEY and isinstance(value, str):
                refuse_false_charsmap(_decoded(value), path)

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return


def _charsmap_of_pieces(data: bytes) -> bytes:
    """Reads a sentencepiece model's charsmap; empty for others: tiktoken's file may have the same name."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        model = sentencepiece_model_pb2.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return b""
    return bytes(model.normalizer_spec.precompiled_charsmap)


def _decoded(text: str) -> bytes:
    """Decodes base64; empty if it is none, which whoever uses it refuses."""
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""
