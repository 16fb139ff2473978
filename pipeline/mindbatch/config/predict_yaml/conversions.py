"""Converts values of a predict YAML to those of MindBatch's keys, or says why a key sets nothing."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeGuard

from mindbatch.config.paths import resolve_path
from mindbatch.config_json.forms import older_form
from mindbatch.hub.models import cached_model
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.strict_json import JsonError, StrictReader
from mindbatch.model_spec.registry import other_keys

NOTHING: tuple[Any, ...] = (None, "", "None", False)
"""Values that mean "not set"."""

LARGEST_CONFIG = 1 << 20
_READER = StrictReader(max_depth=32)
CPU = "CPU"
CHECKPOINT, DEVICE_TARGET = "model.checkpoint_name_or_path", "runtime.device_target"
MODEL_CONFIG = "model.model_config."
GENERATION_CONFIG = "generation_config."
PET_CONFIG = f"{MODEL_CONFIG}pet_config."
LOAD_PATH = "checkpoint.load_path"
WEIGHTS = ("load_checkpoint", "pretrained_model_dir", f"{MODEL_CONFIG}checkpoint_name_or_path", LOAD_PATH)
NO_SUCH_KEY = "the task has no such key"


@dataclass(frozen=True)
class PredictYaml:
    """The values of a predict YAML, and the settings that override them."""

    values: Mapping[str, Any]
    """Values of the YAML, by dotted key."""

    overrides: Mapping[str, Any]
    """Values of MindBatch's keys from the command line, --config and chosen options."""

    strategy: str = ""
    """A setting that chooses the decoding strategy, such as `decoding=top_p`; empty: the YAML chooses it."""

    keys: Collection[str] = ()
    """The keys of the task."""

    def value(self, *keys: str) -> Any:
        """Returns the value of the first of the keys that is set, or None."""
        values = (self.values[key] for key in keys if self.values.get(key) not in NOTHING)
        return next(values, None)

    @property
    def device(self) -> str:
        """The resulting runtime.device_target."""
        written = self.overrides.get(DEVICE_TARGET, self.values.get("context.device_target"))
        return written if isinstance(written, str) else CPU

    @cached_property
    def model_config(self) -> Mapping[str, Any] | None:
        """The content of config.json in the model's folder; None if it does not exist."""
        weights = self.value(*(key for key in WEIGHTS if self.adapter is None or key != "load_checkpoint"))
        return folder_config(self.overrides.get(CHECKPOINT, weights))

    @cached_property
    def adapter(self) -> str | None:
        """The value of load_checkpoint if it is a LoRA adapter for the model in pretrained_model_dir."""
        path, model = self.value("load_checkpoint"), self.value("pretrained_model_dir")
        is_set = self.value(f"{PET_CONFIG}pet_type") == "lora" and CHECKPOINT not in self.overrides
        if not is_set or None in (path, model) or path == model:
            return None
        return None if folder_config(path) is not None else str(path)

    @property
    def is_mcore(self) -> bool:
        """True if use_legacy is False, or if the YAML sets pretrained_model_dir and no model class."""
        if "use_legacy" in self.values:
            return self.values["use_legacy"] is False
        named = self.value("model.arch.type", f"{MODEL_CONFIG}type")
        return named is None and self.value("pretrained_model_dir") is not None


class Effect(Enum):
    """Lists the ways in which a key of a predict YAML can set nothing."""

    KEPT = "its value is the default or is in effect already; nothing is reported"
    NO_EFFECT = "its value has no effect in MindBatch"
    REJECTED = "its value is an error"


@dataclass(frozen=True)
class Verdict:
    """States which effect a key has, and the reason as it is reported."""

    effect: Effect
    reason: str = ""


KEPT = Verdict(Effect.KEPT)


def no_effect(reason: str) -> Verdict:
    return Verdict(Effect.NO_EFFECT, reason)


def rejected(reason: str) -> Verdict:
    return Verdict(Effect.REJECTED, reason)


@dataclass(frozen=True)
class Redirect:
    """Returned by a conversion that sets another key than the entry's."""

    key: str
    value: Any


Conversion = Callable[[Any, PredictYaml], Any]
"""Converts the YAML's value to one of MindBatch's key, or returns a Redirect, several, or a Verdict."""

Check = Callable[[Any, PredictYaml], Verdict]
"""Checks the value of a key that sets nothing."""


def folder_config(folder: object) -> Mapping[str, Any] | None:
    """Reads config.json of a model's folder, or of one in the hub's local cache.

    Returns None where it cannot be read: its errors are reported when the model is loaded.
    """
    if not isinstance(folder, str) or not folder:
        return None
    try:
        path = resolve_path(folder)
        path = path if path.exists() else cached_model(folder) or path
        content = _READER.parse(first_bytes(path / "config.json", LARGEST_CONFIG).decode())
    except (OSError, ValueError, JsonError):
        return None
    if not isinstance(content, dict):
        return None
    return older_form(content, other_keys(content.get("model_type"))).content


def unchanged(value: Any, predict_yaml: PredictYaml) -> Any:
    """Returns the value unchanged, unless it is not set."""
    if value is None or value == "None":
        return KEPT
    return value


@dataclass(frozen=True)
class MapsTo:
    """The entry of a key that sets one of MindBatch's."""

    target: str
    convert: Conversion = unchanged
    absent: str = NO_SUCH_KEY
    """The reason why the key has no effect in a task without the target key."""

    others: tuple[str, ...] = ()
    """Further keys that the conversion may set."""


KeyRule = MapsTo | Check


PET_NAME = "pet_config"
"""The name that the adapter of `pet_type: lora` gets in lora.adapters."""

FLOAT_TYPES = ("float32", "float16", "bfloat16")
HALF_TYPES = FLOAT_TYPES[1:]
NATIVE_CLASSES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "ChatGLM2ForConditionalGeneration",
    "GLMForPreTraining",
    "GLMChatModel",
    "PanguAlphaHeadModel",
)
"""Classes of YAMLs with use_legacy: True whose Hugging Face folders provider native runs."""
NO_WEIGHTS = "not_load_any_ckpt"


def provider(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    if not isinstance(value, bool):
        return rejected("must be True or False")
    return "native" if value else "mindformers"


def float_type(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    """Reads a type of weights and arithmetic: `bfloat16` or MindSpore's `mstype.bfloat16`."""
    name = str(value).removeprefix("mstype.").removeprefix("ms.")
    if name not in FLOAT_TYPES:
        return rejected(f"must be one of {', '.join(FLOAT_TYPES)}")
    if predict_yaml.device == CPU and name in HALF_TYPES:
        return no_effect("on a CPU a YAML's half types are not used; set model.dtype")
    return name


def weights_folder(value: Any, predict_yaml: PredictYaml) -> str | Redirect | Verdict:
    """Reads a folder of weights; load_checkpoint may be an adapter instead."""
    if predict_yaml.adapter is not None and value == predict_yaml.adapter:
        return Redirect("lora.adapters", {PET_NAME: _with_scaling(predict_yaml)})
    if value == NO_WEIGHTS:
        return rejected("a model needs its weights; set their folder")
    if value in NOTHING:
        return KEPT
    if str(value).endswith(".ckpt"):
        return rejected(
            "convert weights of MindFormers to a Hugging Face folder first: mindbatch reshard source=FILE "
            "source_config=FOLDER target.dir=NEW_FOLDER, where FOLDER has the model's config.json"
        )
    return str(value)


def _with_scaling(predict_yaml: PredictYaml) -> Any:
    """Adds the scaling lora_alpha / lora_rank to the adapter's path if the YAML sets both."""
    rank, alpha = (predict_yaml.values.get(f"{PET_CONFIG}{name}") for name in ("lora_rank", "lora_alpha"))
    if is_positive(rank) and is_positive(alpha):
        return {"path": predict_yaml.adapter, "scaling": alpha / rank}
    return predict_yaml.adapter


def is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def model_folder(value: Any, predict_yaml: PredictYaml) -> str | Redirect | Verdict:
    """Reads the model's folder, which is the tokenizer's folder if load_checkpoint has the weights."""
    if value in NOTHING:
        return KEPT
    weights = predict_yaml.value("load_checkpoint")
    if weights is None or weights == predict_yaml.adapter:
        return str(value)
    if weights == value:
        return KEPT
    one, other = folder_config(weights), folder_config(value)
    if one is not None and other is not None and one != other:
        return rejected(
            "its config.json differs from that of load_checkpoint, which is used; make them equal"
        )
    return Redirect("model.tokenizer", str(value))


def source_strategy(value: Any, predict_yaml: PredictYaml) -> Verdict:
    """Rejects the strategy by which a checkpoint was sharded, unless another checkpoint is used."""
    if value in NOTHING:
        return KEPT
    if CHECKPOINT in predict_yaml.overrides:
        return no_effect(f"{CHECKPOINT} overrides it")
    return rejected("merge a sharded checkpoint first: mindbatch reshard source=... source_strategy=...")


def folder_of_file(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    """Returns the folder of a tokenizer's file, since model.tokenizer is a folder."""
    if value in NOTHING:
        return KEPT
    return str(value).rpartition("/")[0] or "."


def num_ranks(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads a number of ranks, which MindFormers uses with use_parallel: True only."""
    if not predict_yaml.value("use_parallel") and value != 1:
        return no_effect("use_parallel is not True")
    return value


def strategy_choice(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads a value that chooses the decoding strategy, unless a setting overrides it."""
    return _overridden_strategy(predict_yaml) if predict_yaml.strategy else value


def _overridden_strategy(predict_yaml: PredictYaml) -> Verdict:
    return no_effect(f"{predict_yaml.strategy} overrides it")


def sampling_value(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads temperature, top_k or top_p, which need do_sample: True."""
    if predict_yaml.strategy:
        return _overridden_strategy(predict_yaml)
    values = predict_yaml.values
    do_sample = next((values[key] for key in _both("do_sample") if key in values), None)
    if do_sample is not True or predict_yaml.overrides.get("decoding.do_sample", True) is not True:
        if value in (None, 1):  # top_k=1 is greedy decoding; 1 is the neutral value of the others
            return KEPT
        return no_effect("nothing is sampled without do_sample: True")
    if value is None:
        return KEPT
    return value


def max_length(value: Any, predict_yaml: PredictYaml) -> Any:
    """Reads the length of prompt and output, which max_new_tokens overrides."""
    if value is None:
        return KEPT
    if (
        predict_yaml.value(*_both("max_new_tokens")) is not None
        or "decoding.max_new_tokens" in predict_yaml.overrides
    ):
        return no_effect("max_new_tokens overrides it")
    return value


def device_memory(value: Any, predict_yaml: PredictYaml) -> Any:
    if predict_yaml.device == CPU:
        return no_effect("on a CPU runtime.cache_memory sets the size of the cache")
    return value


def device_id(value: Any, predict_yaml: PredictYaml) -> Verdict:
    """Rejects any device but the first visible one, which is always used."""
    if value in (0, None, "0"):
        return KEPT
    if predict_yaml.device == CPU:
        return no_effect("a CPU has one device")
    return rejected(f"the first visible device is used; set it to 0 and ASCEND_RT_VISIBLE_DEVICES={value}")


def model_class(value: Any, predict_yaml: PredictYaml) -> Verdict:
    """Checks the class of MindFormers' model: provider native runs the folders of some classes."""
    if predict_yaml.is_mcore or predict_yaml.overrides.get("model.provider") == "mindformers":
        return no_effect("config.json has the type of the model")
    if value in NATIVE_CLASSES:
        return KEPT
    return rejected(
        f"not supported; allowed with use_legacy: True: {', '.join(NATIVE_CLASSES)}, as Hugging Face folders"
    )


def only(allowed: tuple[Any, ...], reason: str) -> Check:
    """Makes a check that rejects all values but those allowed."""

    def check(value: Any, predict_yaml: PredictYaml) -> Verdict:
        return KEPT if value in allowed else rejected(reason)

    return check


def not_set(reason: str) -> Check:
    """Makes a check that rejects a key that is set."""

    def check(value: Any, predict_yaml: PredictYaml) -> Verdict:
        if value in NOTHING or value in ([], {}):
            return KEPT
        return rejected(reason)

    return check


def _both(name: str) -> tuple[str, str]:
    return GENERATION_CONFIG + name, MODEL_CONFIG + name
