"""One form of config.json for all releases of transformers: what 5.x writes, as 4.x wrote it.

Since 5.0 everything about rotary positions is in `rope_parameters`, where layers differ once for each type of
layer, and some keys have other names. What the model types read is the older form.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from mindbatch.checkpoint.error_lines import shown

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
Config: TypeAlias = Mapping[str, JsonValue]
"""An object of config.json, by key."""

ROPE, SCALING = "rope_parameters", "rope_scaling"
THETA, LOCAL_THETA, SHARE = "rope_theta", "rope_local_base_freq", "partial_rotary_factor"
FULL, SLIDING = "full_attention", "sliding_attention"
_FIRST_NESTED = (5,)
_FIRST_BY_LAYER_TYPE = (5, 16)
"""From this release on what a layer type has counts, and not what stands beside, which was left there."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass
class OlderForm:
    """A configuration in the form of transformers 4."""

    content: dict[str, JsonValue]
    written_by: tuple[int, ...] = (0,)
    """The release of transformers; (0,) if unknown."""
    locations: dict[str, str] = field(default_factory=dict)
    """Where the file has a key, by its name here, if it has it elsewhere."""
    read: set[str] = field(default_factory=set)
    """Keys of the file whose content is here under other names."""
    errors: list[tuple[str, object, str]] = field(default_factory=list)
    """(key, its value, what is wrong with it)."""

    def put(self, key: str, value: JsonValue, location: str) -> None:
        """Sets a key that the file has as `location`; an error where it has both, and they differ."""
        if value is None:
            return
        if self.content.get(key) is None:
            self.content[key], self.locations[key] = value, location
        elif self.content[key] != value:
            self.errors.append(
                (key, self.content[key], f"is {shown(value)} in {location}; remove one of them")
            )


def older_form(config: Config, other_keys: Mapping[str, str] = NO_NAMES) -> OlderForm:
    """other_keys: by key, the other name that its configuration class takes for it."""
    form = OlderForm(dict(config), _release(config.get("transformers_version")))
    for key in (ROPE, SCALING):
        if isinstance(settings := config.get(key), Mapping):
            _spread(form, key, settings)
    for older, newer in other_keys.items():
        if newer in form.content:
            form.read.add(newer)
            form.put(older, form.content.pop(newer), form.locations.get(newer, newer))
    return form


def _spread(form: OlderForm, key: str, settings: Config) -> None:
    del form.content[key]
    form.read.add(key)
    whole, location = dict(settings), key
    if FULL in whole or SLIDING in whole:
        local, whole, location = whole.pop(SLIDING, None), _one(form, key, whole), f"{key}.{FULL}"
        _spread_local(form, key, local)
    for inner in (THETA, SHARE):
        if whole.get(inner) is not None:
            if form.written_by >= _FIRST_NESTED:
                form.content.pop(inner, None)  # some releases wrote the older key, too, and did not read it
            form.put(inner, whole.pop(inner), f"{location}.{inner}")
    if {**whole, "rope_type": whole.get("rope_type") or "default"} != {"rope_type": "default"}:
        form.put(SCALING, whole, location)
    else:
        form.content.setdefault(SCALING, None)  # none, and not a type's default


def _one(form: OlderForm, key: str, by_layer_type: Config) -> dict[str, JsonValue]:
    """The settings of the layers without a window."""
    full = by_layer_type.get(FULL)
    if {*by_layer_type} - {FULL, THETA, "rope_type"} or not isinstance(full, Mapping):
        form.errors.append((key, by_layer_type, f"must have {FULL} and {SLIDING}, settings each, or be them"))
        return {}
    base = by_layer_type.get(THETA)
    if base not in (None, full.get(THETA)) and form.written_by < _FIRST_BY_LAYER_TYPE:
        form.errors.append((f"{key}.{THETA}", base, f"is {shown(full.get(THETA))} in {FULL}; remove one"))
    return dict(full)


def _spread_local(form: OlderForm, key: str, local: JsonValue) -> None:
    """The settings of the layers with a window, which have a base of their own and nothing else."""
    location = f"{key}.{SLIDING}"
    if not isinstance(local, Mapping) or local.keys() - {"rope_type", THETA}:
        form.errors.append((location, local, "must have rope_theta, and rope_type default"))
    elif local.get("rope_type", "default") != "default":
        form.errors.append((location, local, "must have rope_type default, as Gemma 3 has"))
    elif THETA in local:
        form.put(LOCAL_THETA, local[THETA], f"{location}.{THETA}")


def _release(version: JsonValue) -> tuple[int, ...]:
    """`5.16.0.dev0` as (5, 16, 0); what is no version as (0,)."""
    numbers = re.match(r"\d{1,4}(\.\d{1,4}){0,2}", version) if isinstance(version, str) else None
    return tuple(map(int, numbers[0].split("."))) if numbers else (0,)


TEXT_CONFIG = "text_config"
TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""By multimodal type, the type of its text part."""
_TIED = ("mistral3",)
"""Multimodal types whose class ties the head where no key says it, and that of their text part does not."""
TIE = "tie_word_embeddings"
# Of images alone, beside what the text part says itself.
_OF_IMAGES = frozenset(
    (
        *("vision_config", "audio_config", "mm_tokens_per_image", "vision_soft_tokens_per_image"),
        *("multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer"),
    )
)
_PLACEHOLDER = re.compile(
    r"(?:image|img|visual|vision|video|audio|speech|[be]o[iav])(?:_\w+)?_token_(?:id|index)"
)
_OUTER = {"language_model.model.": "language_model.", "model.language_model.": "", "language_model.": ""}
"""Prefixes of the names of the text part, each with the prefix that a head of its own has there: as published
for transformers 4; as its class has them and transformers 5 saves; and as saved without the head."""
_PARTS = (
    *("vision_tower", "vision_model", "visual", "audio_tower", "embed_vision", "embed_audio"),
    "multi_modal_projector",
)
UNUSED = tuple(f"{where}{part}.*" for part in _PARTS for where in ("", "model."))
"""Patterns of the tensors of images and sounds."""


def _text_config(config: Config) -> Config | None:
    """The settings of the text part of a multimodal model that is run; None of other models."""
    own, text = config.get("model_type"), config.get(TEXT_CONFIG)
    if not isinstance(own, str) or own not in TEXT_TYPES or not isinstance(text, dict):
        return None
    return text if text.get("model_type") in (None, TEXT_TYPES[own]) else None


def has_text_part(config: Config) -> bool:
    """True if it is of a multimodal model whose text part is run."""
    return _text_config(config) is not None


def text_part(config: Config) -> Config:
    """The configuration of the text part, and what no part says; of a model of text its own."""
    text, own = _text_config(config), str(config.get("model_type"))
    if text is None:
        return config
    around = {key: config[key] for key in config.keys() - _OF_IMAGES - {TEXT_CONFIG}}
    # transformers 4 looks at the text part for it, 5 at what is around; see `as_stored` for stored heads.
    ties = [part[TIE] for part in (config, text) if TIE in part] or [True] * (own in _TIED)
    tied = {TIE: True} if any(tie is True for tie in ties) else {}
    whole = around | dict(text) | tied
    of_text = {key: whole[key] for key in whole if not _PLACEHOLDER.fullmatch(key)}
    return of_text | {"model_type": TEXT_TYPES[own]}


def placeholder_ids(config: Config) -> tuple[tuple[int, str], ...]:
    """The token ids that stand for parts of a prompt which are no text, each with its key; none of a model of
    text."""
    text = _text_config(config)
    if text is None:
        return ()
    keys = {**text, **config}
    ids = {key: keys[key] for key in sorted(keys) if _PLACEHOLDER.fullmatch(key)}
    return tuple((token, key) for key, token in ids.items() if type(token) is int and token >= 0)


def nested_names(prefix: str, stored: Collection[str]) -> Callable[[str], str] | None:
    """From a tensor's name in a model of text to that in a multimodal checkpoint; None where it is none.

    prefix: of the model of text. stored: the checkpoint's names.
    """
    where = next((outer for outer in _OUTER if any(name.startswith(outer) for name in stored)), None)
    if where is None:
        return None
    outers = dict.fromkeys((_OUTER[where], *_OUTER.values(), *_OUTER))  # the first where none is stored

    def nested(name: str) -> str:
        within = name.removeprefix(prefix)
        if within != name:
            return where + within
        return next((outer + name for outer in outers if outer + name in stored), _OUTER[where] + name)

    return nested


def other_names(prefix: str, names: Collection[str]) -> dict[str, str]:
    """The names of a model of text by those that adapters of the multimodal one have for them."""
    return {outer + name.removeprefix(prefix): name for name in names for outer in _OUTER}
