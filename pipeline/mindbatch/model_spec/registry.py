"""Registry of model types; from a folder's config.json to an architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from mindbatch import models
from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.config_json.foreign_models import (
    EXPERTS,
    NOT_READ,
    QUANTIZATION,
    STORAGE_KEYS,
    classes_of,
    foreign_model,
    kind_of,
)
from mindbatch.config_json.forms import Config, JsonValue, text_part
from mindbatch.config_json.reader import (
    NONE_IGNORED,
    ConfigReader,
    IgnoredKeys,
    computed_anyway,
    config_keys,
    keys_without_effect,
)
from mindbatch.io.error_lines import nearest
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models import ModelType

MODEL_TYPES = tuple(sorted(path.stem for path in Path(models.__file__).parent.glob("[!_]*.py")))
"""The modules of `mindbatch.models`, each named after the model_type of Hugging Face configurations."""
HEAD = "lm_head.weight"
MIN_SHARED_KEYS = 4
"""Keys that a configuration shares at least with the type that it is near to."""
_MAX_IN_A_LINE = 3
_OF_MINDIE = {"group_size", "kv_quant_type", "fa_quant_type", "reduce_quant_type"}
"""Settings of msModelSlim's older folders, of which another file says how each tensor is stored."""


def declaration(model_type: str) -> ModelType:
    model: ModelType = import_module(f"mindbatch.models.{model_type}").MODEL
    return model


def defaults(model_type: str) -> Config:
    """The values that the model's own configuration class takes for absent keys."""
    return config_keys()["defaults"].get(model_type, {})


def reader_of(
    model_type: str, config: Config, source: str, ignore: IgnoredKeys = NONE_IGNORED
) -> ConfigReader:
    """A reader of a type's configuration, which passes over the keys that are without effect there."""
    reader = ConfigReader(config, source, defaults(model_type), ignore, other_keys(model_type))
    reader.ignore(keys_without_effect(model_type))
    reader.check_computed(computed_anyway(model_type))
    return reader


def other_keys(model_type: object) -> Mapping[str, str]:
    """By a key of the type's config.json, the other name that its configuration class takes for it."""
    return config_keys()["other_names"].get(str(model_type), {})


def unused_tensors(architecture: Architecture) -> tuple[str, ...]:
    """Patterns of the names that a checkpoint of it may hold though nothing reads them."""
    first, count = architecture.num_layers, architecture.next_token_layers
    further = (f"model.layers.{layer}.*" for layer in range(first, first + count))
    # Published files have keys and values of layers, too, that see those of others.
    sees = enumerate(architecture.cache_layers)
    shared = (f"model.layers.{layer}.self_attn.[kv]_*" for layer, source in sees if source != layer)
    own = declaration(architecture.model_type).unused_tensors
    return (*own, *further, *shared, *copies(architecture))


def copies(architecture: Architecture) -> dict[str, str]:
    """By the name of a tensor that a checkpoint may hold besides, the tensor that it must be equal to."""
    return {**declaration(architecture.model_type).copies, **tied_tensors(architecture)}


def tied_tensors(architecture: Architecture) -> dict[str, str]:
    """The tensor of the token embedding by the name of the head's, where a model has them in one."""
    return {HEAD: embedding_source(architecture)} if architecture.tied else {}


def embedding_source(architecture: Architecture) -> str:
    specs = tensor_specs(architecture)
    [source] = (spec.parts[0].source for spec in specs if spec.name == "embedding.weight")
    return source


def describe(
    config: Config,
    model_type: str = "auto",
    source: str = "config.json",
    *,
    to_be_run: bool = True,
    ignore: IgnoredKeys = NONE_IGNORED,
) -> Architecture:
    """The architecture that a Hugging Face configuration asks for.

    model_type: "auto" takes the configuration's own; another one is for folders whose own type is unknown.
    to_be_run: False lets none in whose weights are quantised.
    ignore: keys that the user takes to be without effect.

    Raises:
        CheckpointError: an unknown model type, or every key that is wrong or not understood.
        ConfigError: `model_type` contradicts the configuration.
    """
    chosen = chosen_type(config, model_type, source, to_be_run=to_be_run, ignore=ignore)
    config = text_part(config)
    declared, reader = declaration(chosen), reader_of(chosen, config, source, ignore)
    architecture = declared.describe(reader)
    if quantised := to_be_run and _is_read_quantised(config, source, ignore):
        reader.ignore([QUANTIZATION])
    reader.finish()
    if quantised:
        specs = [*declared.tree(architecture).parameters()]
        refuse_quantised(specs, chosen, f"{source}: {QUANTIZATION}")
    return replace(architecture, model_type=chosen)


def refuse_quantised(specs: Sequence[TensorSpec], model_type: str, where: object) -> None:
    """CheckpointError for a model whose files have transposes of matrices, of which outputs are not whole."""
    if any(part.transposed and part.matrix is None for spec in specs for part in spec.parts):
        raise CheckpointError(f"{where}: quantised weights of {model_type} are not read")


def chosen_type(
    config: Config,
    model_type: str,
    source: str,
    *,
    to_be_run: bool = True,
    ignore: IgnoredKeys = NONE_IGNORED,
) -> str:
    """The type whose module describes the model: `model_type`, or its own. Arguments, errors: `describe`."""
    config, ignored, why = text_part(config), ignore.names, NOT_READ
    if any(config.get(key) for key in STORAGE_KEYS):
        from mindbatch.checkpoint.quantised.registry import read_methods  # with NumPy, as below

        is_read = _is_read_quantised(config, source, ignore)
        if to_be_run:
            why = f"{NOT_READ} (read are {read_methods()})"
            ignored += (QUANTIZATION,) if is_read else ()
        elif is_read:
            why = "tasks that run a model read, and this one does not"
    reason = foreign_model(config, ignored, why)
    if reason is not None:
        raise CheckpointError(f"{source}: {reason}")
    own = _own_type(config)
    chosen = own if model_type in ("auto", config.get("model_type")) else model_type
    if chosen is None:
        raise CheckpointError(f"{source}: model_type is missing; allowed: {', '.join(MODEL_TYPES)}")
    if own in MODEL_TYPES and own != chosen:
        raise ConfigError(f"model.type={chosen}: {source} says model_type={own!r}; allowed: auto, {own}")
    _refuse_unknown(chosen, config, source)
    return str(chosen)


def _own_type(config: Config) -> JsonValue:
    """The type of a configuration's own model_type; ChatGLM-6B's is also that of its successors."""
    own = config.get("model_type")
    if own == "gpt_pangu":
        return "pangu_alpha"
    return "chatglm_6b" if own == "chatglm" and "position_encoding_2d" in config else own


def _is_read_quantised(config: Config, source: str, ignore: IgnoredKeys) -> bool:
    """True if the matrices are stored as integers, in a way that is read. CheckpointError: not with these."""
    settings = config.get(QUANTIZATION)
    if isinstance(settings, Mapping) and "kv_quant_type" in settings and settings.keys() <= _OF_MINDIE:
        return True
    if QUANTIZATION not in config:
        return False
    from mindbatch.config_json.quantisation import read_scheme  # NumPy, which a wrong setting need not load

    return read_scheme(config, source, ignore.names) is not None


def _refuse_unknown(model_type: object, config: Config, source: str) -> None:
    if model_type in MODEL_TYPES:
        return
    kind = kind_of(str(model_type), config)
    hint = ""
    if meant := None if kind else _misspelt(str(model_type)):
        hint = f"; did you mean {meant}?"
    elif kind in (None, EXPERTS) and (near := nearest_supported(config, source)):
        hint = f"; the nearest is {near.brief()}"
    detail = f", {kind}," if kind else ""
    raise CheckpointError(
        f"{source}: model type {model_type!r}{detail} is not supported; "
        f"allowed: {', '.join(MODEL_TYPES)}{hint}"
    )


@dataclass(frozen=True)
class NearestType:
    """differences: what a model of this type would have otherwise, as errors of the configuration."""

    model_type: str
    differences: tuple[str, ...]

    def brief(self) -> str:
        """Lists for each difference what was found, in part of a line."""
        described = [
            error.partition(": ")[2].partition(";")[0] for error in self.differences[:_MAX_IN_A_LINE]
        ]
        more = len(self.differences) - len(described)
        listed = ", ".join([*described, *([f"and {more} more"] if more else [])])
        return f"{self.model_type}, where differs: {listed or 'no key, but tensors may'}"


def nearest_supported(config: Config, source: str) -> NearestType | None:
    """The type that a configuration names, by model_type or by a class that it has; or is most like.

    Most like is the one that understands it with the fewest errors, however weights are stored and whatever
    its task is; of several, that with the fewest other keys. None where it shares few keys with any.
    The weights are not looked at: tensors may differ, too.
    """
    config = text_part(config)
    named = config.get("model_type")
    if named not in MODEL_TYPES:
        named = next(filter(None, map(_type_of_class, classes_of(config))), None)
    if named is not None:
        return NearestType(str(named), _errors({**config, "model_type": named}, source))
    bare = {key: config[key] for key in config if key not in (*STORAGE_KEYS, "architectures")}
    candidates: list[tuple[int, int, NearestType]] = []
    for model_type in MODEL_TYPES:
        keys = defaults(model_type).keys()
        if len(config.keys() & keys) >= MIN_SHARED_KEYS:
            differences = _errors({**bare, "model_type": model_type}, source)
            others = len(keys - config.keys())
            candidates.append((len(differences), others, NearestType(model_type, differences)))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


_CLASS = re.compile(r"(\w{2,40}?)(?:For[A-Z]\w*|LMHead\w*|Model|RewardModel)")


def _type_of_class(name: str) -> str | None:
    """The type whose network a class of transformers has, whatever head it puts on top."""
    match = _CLASS.fullmatch(name)
    plain = match[1].lower().replace("_", "") if match else ""
    types = {name.replace("_", ""): name for name in MODEL_TYPES}
    return types.get(plain, types.get(f"{plain}text"))


def _errors(config: Config, source: str) -> tuple[str, ...]:
    try:
        describe(config, source=source, ignore=IgnoredKeys(setting=""))
    except (CheckpointError, ConfigError) as error:
        return error.lines
    return ()


def _misspelt(model_type: str) -> str | None:
    """The type that was meant: another number is another architecture."""
    plain = model_type.lower().replace("_", "").replace("-", "")
    near = nearest(plain, MODEL_TYPES, cutoff=0.85)
    return near if near and _digits(near) == _digits(plain) else None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


@lru_cache(maxsize=8)
def tensor_specs(architecture: Architecture) -> Sequence[TensorSpec]:
    return tuple(declaration(architecture.model_type).tree(architecture).parameters())
