"""Whose names the tensors of a checkpoint have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mindbatch.checkpoint.names.correspondence import known_names
from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import NAMED_MODEL_TYPES, dialect


def has_mindformers_names(model_type: str, names: Collection[str]) -> bool:
    """Whether more of the names are MindFormers' than Hugging Face's."""
    if model_type not in NAMED_MODEL_TYPES:
        return False
    original = known_names(dialect(model_type), names, is_stored=False)
    stored = [known_names(dialect(model_type, options), names, is_stored=True) for options in _KINDS]
    return max(map(len, stored)) > len(original)


def detected_options(model_type: str, names: Collection[str], options: Options) -> Options:
    """The options with the qkv_concat that fits more of the names, which are MindFormers'."""
    kinds = [replace(options, qkv_concat=is_fused) for is_fused in (False, True)]
    return max(
        kinds, key=lambda each: len(known_names(dialect(model_type, each), names, is_stored=True))
    )  # the first of equals


def has_fused_form(model_type: str) -> bool:
    """Whether the model type has the option qkv_concat."""
    plain, fused = (dialect(model_type, options) for options in _KINDS)
    return plain != fused


_KINDS = (Options(), Options(qkv_concat=True))
