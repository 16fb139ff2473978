"""The families of models that MindFormers 1.9 runs: the table, what classes are given, how models are cut."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.backends.mindformers import arguments
from mindbatch.checkpoint.error_lines import raise_if_any
from mindbatch.config_json.foreign_models import foreign_model
from mindbatch.config_json.reader import NONE_IGNORED, ConfigReader, IgnoredKeys
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import MODEL_TYPES, reader_of
from mindbatch.model_spec.registry import describe as describe_native
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice

_CODE = ("trust_remote_code", "register_path")
PROVIDER = "model.provider=mindformers"
NOT_ON_ASCEND = (
    f"lora.adapters: not beside a model of {PROVIDER} on Ascend; allowed: one, with lora.mode=merge, "
    "model.provider=native, or runtime.device_target=CPU"
)


@dataclass(frozen=True)
class Family:
    """Models of one model_type, which is a native one, too.

    package, stem: mindformers.models.{package} has modules modeling_{stem}_infer and configuration_{stem}.
    network, configuration: their classes Inference{network}ForCausalLM and {configuration}Config.
    arguments: of that configuration; what MindFormers does not compute is left in the reader as an error.
    names: of tensors that MindFormers' own list of names lacks, as (part of Hugging Face's, part of its own).
    layers_key: of config.json, which says the number of layers.
    """

    package: str
    stem: str
    network: str
    configuration: str
    arguments: Callable[[ConfigReader, Architecture], dict[str, Any]]
    names: tuple[tuple[str, str], ...] = ()
    layers_key: str = "num_hidden_layers"


@dataclass(frozen=True)
class MindFormersSpec(ModelSpec):
    """A model as our own layers have it, and the arguments of MindFormers' configuration class.

    Those say nothing of the types to compute in. What MindFormers' operators take is left to them.
    """

    arguments: Mapping[str, Any]

    @property
    def max_positions(self) -> int:
        """Positions of the table of rotations, and no more than the model is said to have."""
        most, scaling = super().max_positions, self.arguments.get("rope_scaling")
        if scaling is None:
            return most
        return min(most, int(scaling["factor"] * scaling["original_max_position_embeddings"]))

    @property
    def rank_parameters(self) -> tuple[int, ...]:
        """At least so many."""
        return (self.num_parameters // self.shard.size,)

    @property
    def head_dim(self) -> int:
        """0 for latent attention."""
        return 0 if self.architecture.latent is not None else super().head_dim

    @property
    def is_gathered(self) -> bool:
        return False

    @property
    def expert_numbers(self) -> int:
        return 0


def describe(
    config: Mapping[str, Any],
    source: str = "config.json",
    *,
    ignore: IgnoredKeys = NONE_IGNORED,
    shard: TensorSlice = WHOLE,
) -> MindFormersSpec:
    """The model that a Hugging Face configuration asks for.

    ignore: keys that the user takes to be without effect. shard: the rank.

    Raises:
        CheckpointError: a family that MindFormers does not run, or every key that is wrong, not understood or
            not computed by it.
    """
    family = family_of(config, source, ignore)
    raise_if_any([f"{source}: {key}: code is never run; remove it" for key in _CODE if config.get(key)])
    arch = describe_native(config, source=source, ignore=ignore)
    reader = reader_of(arch.model_type, config, source, ignore)
    arguments = family.arguments(reader, arch)
    raise_if_any(reader.errors)
    stage = Stage(range(arch.num_layers))
    return MindFormersSpec(arch, shard, stage, (stage,), arguments)


def family_of(config: Mapping[str, Any], source: str, ignore: IgnoredKeys = NONE_IGNORED) -> Family:
    """The family of a configuration. CheckpointError says what would run a model of another one."""
    reason = foreign_model(config, ignore.names)
    if reason is not None:
        raise CheckpointError(f"{source}: {reason}")
    model_type = config.get("model_type")
    if model_type in FAMILIES:
        return FAMILIES[str(model_type)]
    way_out = (
        "model.provider=native runs it"
        if model_type in MODEL_TYPES
        else f"neither does model.provider=native, which runs {', '.join(MODEL_TYPES)}"
    )
    raise CheckpointError(
        f"{source}: model type {model_type!r}: {PROVIDER} does not run it; allowed: {', '.join(FAMILIES)}; "
        f"{way_out}"
    )


_QK_NORM = (
    (".self_attn.q_norm.", ".self_attention.q_layernorm."),
    (".self_attn.k_norm.", ".self_attention.k_layernorm."),
)
FAMILIES: dict[str, Family] = {
    "qwen2": Family("qwen2", "qwen2", "Qwen2", "Qwen2", arguments.of_qwen),
    "qwen3": Family("qwen3", "qwen3", "Qwen3", "Qwen3", arguments.of_qwen3),
    "qwen3_moe": Family("qwen3_moe", "qwen3_moe", "Qwen3Moe", "Qwen3Moe", arguments.of_qwen3_moe),
    "glm4": Family("glm4", "glm4", "Glm4", "Glm4", arguments.of_glm4),
    "glm4_moe": Family("glm4_moe", "glm4_moe", "Glm4Moe", "Glm4Moe", arguments.of_glm4_moe, _QK_NORM),
    "deepseek_v3": Family("deepseek3", "deepseek_v3", "DeepseekV3", "DeepseekV3", arguments.of_deepseek_v3),
    "telechat3": Family("telechat3", "telechat3", "Telechat3", "TeleChat3", arguments.of_qwen),
    "telechat": Family(
        "telechat2", "telechat2", "Telechat2", "Telechat2", arguments.of_telechat2, layers_key="n_layer"
    ),
}


_DENSE_LAYERS = "first_k_dense_replace"


def layer_sample(
    arch: Architecture, config: Mapping[str, Any], *, all_layers: bool = False
) -> tuple[dict[int, int], Mapping[str, Any]]:
    """Layers that stand for all, each with how many it stands for; and the config with these layers only.

    They are the first layer, and the first with experts where that is another: all are like one of them.
    config: the content of config.json that `arch` was described from. all_layers: each stands for itself.
    """
    count = arch.num_layers
    if all_layers:
        return dict.fromkeys(range(count), 1), config
    dense = 0 if arch.experts is None else count - len(arch.experts.layers)
    is_mixed = 0 < dense < count
    counts = {0: dense, dense: count - dense} if is_mixed else {0: count}
    lists = {
        key: [value[layer] for layer in counts]
        for key, value in config.items()
        if "layer" in key and isinstance(value, list) and len(value) == count  # one entry a layer
    }
    numbers = {FAMILIES[arch.model_type].layers_key: len(counts)} | ({_DENSE_LAYERS: 1} if is_mixed else {})
    return counts, {**config, **lists, **numbers}


def stages_error(stages: int) -> str:
    return (
        f"parallel.pipeline_stage={stages}: not with model.provider=mindformers, whose networks are not "
        "divided by layers; allowed: 1 with parallel.model_parallel, or model.provider=native"
    )


def division_errors(arch: Architecture, size: int) -> Iterator[str]:
    """Yields why a model cannot be divided over so many ranks: all that does not divide, and what would."""
    undivided = _undivided(arch, size)
    if undivided:
        numbers = ", ".join(f"{name}={number}" for name, number in undivided.items())
        allowed = ", ".join(
            str(candidate) for candidate in range(1, arch.heads + 1) if not _undivided(arch, candidate)
        )
        yield f"parallel.model_parallel={size}: does not divide {numbers}; allowed for this model: {allowed}"


def _undivided(arch: Architecture, size: int) -> Mapping[str, int]:
    """Sizes that so many ranks cannot share, by their keys in config.json; the vocabulary is not padded."""
    numbers = {
        "num_attention_heads": arch.heads,
        "intermediate_size": arch.intermediate_size,
        "vocab_size": arch.vocab_size,
    }
    if arch.experts is not None:
        numbers["moe_intermediate_size"] = arch.experts.intermediate_size
        if arch.experts.shared:
            numbers["shared_expert_intermediate_size"] = sum(arch.experts.shared)
    undivided = {name: number for name, number in numbers.items() if number % size}
    if arch.latent is None and arch.kv_heads % size and size % arch.kv_heads:
        undivided["num_key_value_heads"] = arch.kv_heads
    return undivided
