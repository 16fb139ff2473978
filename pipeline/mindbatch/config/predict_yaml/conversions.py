"""Entries of the tables of predict YAML keys, and conversions where values do not mean the same here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeGuard

from mindbatch.config.paths import resolve_path
from mindbatch.config_json.forms import older_form
from mindbatch.hub.models import cached_model
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.strict_json import JsonError, StrictReader
from mindbatch.model_spec.registry import other_keys

NOTHING: tuple[Any, ...] = (None, "", "None", False)
"""Values that ask for nothing."""

LARGEST_CONFIG = 1 << 20
_READER = StrictReader(max_depth=32)
CPU = "CPU"
CHECKPOINT, DEVICE_TARGET = "model.checkpoint_name_or_path", "runtime.device_target"
MODEL_CONFIG = "model.model_config."
GENERATION_CONFIG = "generation_config."
PET_CONFIG = f"{MODEL_CONFIG}pet_config."
WEIGHTS = ("load_checkpoint", "pretrained_model_dir", f"{MODEL_CONFIG}checkpoint_name_or_path")


@dataclass(frozen=True)
class Facts:
    values: Mapping[str, Any]
    """Values of the YAML, by dotted key."""

    above: Mapping[str, Any]
    """Values by our key that go before the YAML's: of the command line, --config and chosen options."""

    strategy: str = ""
    """Setting given for how tokens are chosen, `decoding=top_p` for one; empty: the YAML says how."""

    def value(self, *keys: str) -> Any:
        """The value of the first of the keys that asks for something, or None."""
        values = (self.values[key] for key in keys if self.values.get(key) not in NOTHING)
        return next(values, None)

    @property
    def device(self) -> str:
        """runtime.device_target of the result."""
        written = self.above.get(DEVICE_TARGET, self.values.get("context.device_target"))
        return written if isinstance(written, str) else CPU

    @cached_property
    def model_config(self) -> Mapping[str, Any] | None:
        """config.json of the model's folder; None where it is not there."""
        weights = self.value(*(key for key in WEIGHTS if self.adapter is None or key != "load_checkpoint"))
        return folder_config(self.above.get(CHECKPOINT, weights))

    @cached_property
    def adapter(self) -> str | None:
        """load_checkpoint, where that is a LoRA adapter (pet_config) of the model in pretrained_model_dir."""
        path, model = self.value("load_checkpoint"), self.value("pretrained_model_dir")
        is_asked = self.value(f"{PET_CONFIG}pet_type") == "lora" and CHECKPOINT not in self.above
        if not is_asked or None in (path, model) or path == model:
            return None
        return None if folder_config(path) is not None else str(path)

    @property
    def is_mcore(self) -> bool:
        """True if the YAML is of the newer form: it says so, or names no class and gives a folder."""
        if "use_legacy" in self.values:
            return self.values["use_legacy"] is False
        named = self.value("model.arch.type", f"{MODEL_CONFIG}type")
        return named is None and self.value("pretrained_model_dir") is not None


class WithoutEffect(Exception):
    """Raised where a key's value has no effect here, with the reason in a few words."""


class Agreed(Exception):
    """A key says what is so anyway, or asks for nothing: there is nothing to report."""


class Unfit(Exception):
    """Raised where a key's value is refused, with the reason and what to do."""


@dataclass(frozen=True)
class InPlaceOf:
    """Returned by a conversion that sets another key than the entry's."""

    key: str
    value: Any


Conversion = Callable[[Any, Facts], Any]
"""From the YAML's value to that of our key. Raises Agreed, WithoutEffect or Unfit."""

Check = Callable[[Any, Facts], NoReturn]
"""Sets nothing. Raises Agreed, WithoutEffect or Unfit."""


def folder_config(folder: object) -> Mapping[str, Any] | None:
    """config.json of a model's folder, or of one in the hub's local cache; None where it cannot be read.

    What is wrong with it is reported when the model is read.
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


def as_it_is(value: Any, facts: Facts) -> Any:
    """The value; one that asks for nothing leaves our key alone."""
    if value is None or value == "None":
        raise Agreed
    return value


@dataclass(frozen=True)
class Sets:
    ours: str
    convert: Conversion = as_it_is
    absent: str = "the task has no such key"
    """Why it has no effect for a task without the key."""


Entry = Sets | Check


PET_NAME = "pet_config"
"""The name in lora.adapters of the one adapter of `pet_type: lora`."""

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
"""Classes of the older form whose Hugging Face folders provider native runs."""
NO_WEIGHTS = "not_load_any_ckpt"


def provider(value: Any, facts: Facts) -> str:
    if not isinstance(value, bool):
        raise Unfit("must be True or False")
    return "native" if value else "mindformers"


def float_type(value: Any, facts: Facts) -> str:
    """A type of weights and arithmetic, by its name in MindSpore, too."""
    name = str(value).removeprefix("mstype.").removeprefix("ms.")
    if name not in FLOAT_TYPES:
        raise Unfit(f"must be one of {', '.join(FLOAT_TYPES)}")
    if facts.device == CPU and name in HALF_TYPES:
        raise WithoutEffect("on a CPU everything is computed in float32")
    return name


def weights_folder(value: Any, facts: Facts) -> str | InPlaceOf:
    """From load_checkpoint, which goes before the YAML's other folders, or is an adapter."""
    if facts.adapter is not None and value == facts.adapter:
        return InPlaceOf("lora.adapters", {PET_NAME: _with_scaling(facts)})
    if value == NO_WEIGHTS:
        raise Unfit("a model is not run without its weights; give their folder")
    if value in NOTHING:
        raise Agreed
    if str(value).endswith(".ckpt"):
        raise Unfit(
            "weights of MindFormers are made a Hugging Face folder first: mindbatch reshard source=FILE "
            "source_config=FOLDER target.dir=NEW_FOLDER, of a FOLDER with the model's config.json"
        )
    return str(value)


def _with_scaling(facts: Facts) -> Any:
    """The adapter's path, with lora_alpha / lora_rank where the YAML says both."""
    rank, alpha = (facts.values.get(f"{PET_CONFIG}{name}") for name in ("lora_rank", "lora_alpha"))
    if is_positive(rank) and is_positive(alpha):
        return {"path": facts.adapter, "scaling": alpha / rank}
    return facts.adapter


def is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def model_folder(value: Any, facts: Facts) -> str | InPlaceOf:
    """From pretrained_model_dir: the model's folder; the tokenizer's where the weights are elsewhere."""
    if value in NOTHING:
        raise Agreed
    weights = facts.value("load_checkpoint")
    if weights is None or weights == facts.adapter:
        return str(value)
    if weights == value:
        raise Agreed
    one, other = folder_config(weights), folder_config(value)
    if one is not None and other is not None and one != other:
        raise Unfit("its config.json is not that of load_checkpoint, which counts; make them the same")
    return InPlaceOf("model.tokenizer", str(value))


def source_strategy(value: Any, facts: Facts) -> NoReturn:
    """Rejects the strategy that a checkpoint was sharded by, unless it has no effect."""
    if value in NOTHING:
        raise Agreed
    if CHECKPOINT in facts.above:
        raise WithoutEffect(f"{CHECKPOINT} is given")
    raise Unfit(
        "a checkpoint that is cut is made whole first: mindbatch reshard source=... source_strategy=..."
    )


def folder_of_file(value: Any, facts: Facts) -> str:
    """The folder of a file of a tokenizer: ours are read as a folder."""
    if value in NOTHING:
        raise Agreed
    return str(value).rpartition("/")[0] or "."


def of_all_ranks(value: Any, facts: Facts) -> Any:
    """A number of ranks, which MindFormers reads with use_parallel: True only."""
    if not facts.value("use_parallel") and value != 1:
        raise WithoutEffect("use_parallel is not True")
    return value


def samples(value: Any, facts: Facts) -> Any:
    """do_sample, unless something given says how tokens are chosen."""
    if facts.strategy:
        raise WithoutEffect(f"{facts.strategy} says how tokens are chosen")
    return value


def of_sampling(value: Any, facts: Facts) -> Any:
    """Checks a value that narrows or warms the choice, which needs do_sample: True."""
    if facts.strategy:
        raise WithoutEffect(f"{facts.strategy} says how tokens are chosen")
    asked = next((facts.values[key] for key in _both("do_sample") if key in facts.values), None)
    if asked is not True or facts.above.get("decoding.do_sample", True) is not True:
        if value in (None, 1):  # of top_k what greedy decoding does, of the others nothing
            raise Agreed
        raise WithoutEffect("nothing is sampled without do_sample: True")
    if value is None:
        raise Agreed
    return value


def longest(value: Any, facts: Facts) -> Any:
    """max_length or max_decode_length: of prompt and output; max_new_tokens goes before them."""
    if value is None:
        raise Agreed
    if facts.value(*_both("max_new_tokens")) is not None or "decoding.max_new_tokens" in facts.above:
        raise WithoutEffect("max_new_tokens goes before it")
    return value


def device_memory(value: Any, facts: Facts) -> Any:
    if facts.device == CPU:
        raise WithoutEffect("on a CPU the cache takes runtime.cache_memory")
    return value


def device_id(value: Any, facts: Facts) -> NoReturn:
    """Rejects the key, for which there is none here: the first visible device is taken."""
    if value in (0, None, "0"):
        raise Agreed
    if facts.device == CPU:
        raise WithoutEffect("a CPU has one device")
    raise Unfit(f"no key chooses the device; set it to 0 and ASCEND_RT_VISIBLE_DEVICES={value}")


def model_class(value: Any, facts: Facts) -> NoReturn:
    """A class of MindFormers; provider native runs the folders of a few."""
    if facts.is_mcore or facts.above.get("model.provider") == "mindformers":
        raise WithoutEffect("config.json says which model it is")
    if value in NATIVE_CLASSES:
        raise Agreed
    raise Unfit(f"is not run; of the older form {', '.join(NATIVE_CLASSES)} are, as Hugging Face folders")


def only(allowed: tuple[Any, ...], refusal: str) -> Check:
    def check(value: Any, facts: Facts) -> NoReturn:
        raise Agreed if value in allowed else Unfit(refusal)

    return check


def unless_asked(refusal: str) -> Check:
    def check(value: Any, facts: Facts) -> NoReturn:
        if value in NOTHING or value in ([], {}):
            raise Agreed
        raise Unfit(refusal)

    return check


def _both(name: str) -> tuple[str, str]:
    return GENERATION_CONFIG + name, MODEL_CONFIG + name
