"""Recognises, by config.json, models that are not run here: quantised, of another kind, for another task."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

from mindbatch.config_json.forms import Config

EXPERTS = "a mixture of experts"
_PARTS = ("text_config", "vision_config", "audio_config", "language_config", "llm_config", "thinker_config")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
QUANTIZATION = "quantization_config"
STORAGE_KEYS = (QUANTIZATION, "compression_config", "quantization")
"""Keys of settings that say how matrices are stored."""
NOT_READ = "are not read"
_QUANTISED = (
    "{key}: the weights are quantised ({how}), which {why}; take the folder of the original model, in "
    "float32, float16 or bfloat16"
)


class _ForeignNames(TypedDict):
    """Model types that are not run by kind, what classes do by the ends of their names, and methods that
    quantise by their quant_method."""

    kinds: Mapping[str, Sequence[str]]
    tasks: Mapping[str, str]
    quantisation_methods: Mapping[str, str]


@lru_cache(maxsize=1)
def _known() -> _ForeignNames:
    content: _ForeignNames = json.loads(Path(__file__).with_name("foreign_models.json").read_bytes())
    return content


def foreign_model(config: Config, ignored: Collection[str] = (), why: str = NOT_READ) -> str | None:
    """Reason why a model of this configuration is not run, whatever its sizes; None if nothing tells.

    ignored: keys that are to be passed over. why: the reason why quantised weights are not taken.
    """
    return next(_reasons({key: config[key] for key in config if key not in ignored}, why), None)


def is_described(home: Path, config: Config) -> bool:
    """True if a folder says how its matrices are stored, in config.json or in a file beside it."""
    from mindbatch.checkpoint.folders.description_files import description_in  # few commands come so far

    return QUANTIZATION in config or description_in(home) is not None


def kind_of(model_type: str, config: Config) -> str | None:
    """Describes a model type that is not supported, in a few words; None where it is not known."""
    if config.get("is_encoder_decoder") is True:
        return "an encoder-decoder model"
    if "moe" in model_type or any(config.get(key) for key in _EXPERTS):
        return EXPERTS
    return next((kind for kind, types in _known()["kinds"].items() if model_type in types), None)


def _reasons(config: Config, why: str) -> Iterator[str]:
    for key in STORAGE_KEYS:
        settings = config.get(key)
        if isinstance(settings, Mapping) and settings:
            yield _QUANTISED.format(key=key, how=_quantisation_method(key, settings), why=why)
    parts = [key for key in _PARTS if isinstance(config.get(key), Mapping)]
    if parts:
        yield f"{', '.join(parts)}: a multimodal model; models of text alone are run"
    for name in classes_of(config):
        for end, does in _known()["tasks"].items():
            if name.endswith(end):
                yield f"architectures: {name!a} {does} and generates none; models of ...ForCausalLM are run"


def classes_of(config: Config) -> list[str]:
    """Names of the classes that a configuration says the model has."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _quantisation_method(key: str, settings: Config) -> str:
    method = settings.get("quant_method")
    name = _known()["quantisation_methods"].get(method) if isinstance(method, str) else None
    if name is None:
        name = "MLX" if key == "quantization" or "group_size" in settings else "a method unknown here"
    bits = next((settings[key] for key in ("bits", "w_bit") if isinstance(settings.get(key), int)), None)
    if bits is None:
        bits = next((bits for bits in (4, 8) if settings.get(f"load_in_{bits}bit") is True), None)
    return name if bits is None else f"{name}, {bits} bits"
