"""The text part of multimodal models, which runs as the model of text that it is: its keys, its tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

TEXT_CONFIG = "text_config"
TEXT_TYPES = {"gemma3": "gemma3_text"}
"""By multimodal type, the type of its text part."""
# Of images alone, beside what the text part says itself.
_OF_IMAGES = frozenset(
    ("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
)
_WHERE = ("language_model.model.", "model.language_model.")
"""In front of the names of the text part: as published and saved, and as transformers' class has them."""
UNUSED = tuple(
    f"{where}{part}.*" for part in ("vision_tower", "multi_modal_projector") for where in ("", "model.")
)
"""Patterns of the tensors of images."""


def has_text_part(config: Mapping[str, Any]) -> bool:
    """True if it is of a multimodal model whose text part is run."""
    own = config.get("model_type")
    return isinstance(own, str) and own in TEXT_TYPES and isinstance(config.get(TEXT_CONFIG), Mapping)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the text part, and what no part says; of a model of text its own."""
    if not has_text_part(config):
        return config
    around = {key: config[key] for key in config.keys() - _OF_IMAGES - {TEXT_CONFIG}}
    return around | dict(config[TEXT_CONFIG]) | {"model_type": TEXT_TYPES[config["model_type"]]}


def nested_names(prefix: str, stored: Collection[str]) -> Callable[[str], str] | None:
    """From a tensor's name in a model of text to that in a multimodal checkpoint; None where it is none.

    prefix: of the model of text. stored: the checkpoint's names.
    """
    where = next((place for place in _WHERE if any(name.startswith(place) for name in stored)), None)
    if where is None:
        return None
    outer = where.removesuffix(prefix)  # what is in front of the head

    def nested(name: str) -> str:
        within = name.removeprefix(prefix)
        if within == name:
            return name if outer == where else outer + name
        return where + within

    return nested


def other_names(prefix: str, names: Collection[str]) -> dict[str, str]:
    """The names of a model of text by those that adapters of the multimodal one have for them."""
    return {
        where + name.removeprefix(prefix): name
        for name in names
        if name.startswith(prefix)
        for where in _WHERE
    }
