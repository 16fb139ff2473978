"""Lists the model families that MindFormers 1.9 runs, their classes, and how they are divided over ranks."""

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
    """A family of models of one model_type, which is also a native one.

    package, stem: mindformers.models.{package} has modules modeling_{stem}_infer and configuration_{stem}.
    network, configuration: the stems of their classes Inference{network}ForCausalLM and
        {configuration}Config.
    arguments: makes the arguments of that configuration; adds errors to the reader for settings that
        MindFormers does not support.
    names: replacements in tensor names that MindFormers' own list lacks, from Hugging Face's to its own.
    layers_key: the key of config.json with the number of layers.
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
    """A ModelSpec with the arguments of MindFormers' configuration class, except the number types."""

    arguments: Mapping[str, Any]

    @property
    def max_positions(self) -> int:
        """The positions that MindFormers' table of rotations covers, at most those of config.json."""
        declared, scaling = super().max_positions, self.arguments.get("rope_scaling")
        if scaling is None:
            return declared
        return min(declared, int(scaling["factor"] * scaling["original_max_position_embeddings"]))

    @property
    def rank_parameters(self) -> tuple[int, ...]:
        """A lower bound of the parameters of each rank."""
        return (self.num_parameters // self.shard.size,)

    @property
    def head_dim(self) -> int:
        """The size of a head; 0 for latent attention."""
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
    """Describes the model of a Hugging Face configuration.

    ignore: keys that the user declares to have no effect. shard: the rank.

    Raises:
        CheckpointError: MindFormers does not run the family, or keys are invalid, unknown or not supported by
            it.
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
    """Returns the family of a configuration. Raises CheckpointError, with advice, if it is not supported."""
    reason = foreign_model(config, ignore.names)
    if reason is not None:
        raise CheckpointError(f"{source}: {reason}")
    model_type = config.get("model_type")
    if model_type in FAMILIES:
        return FAMILIES[str(model_type)]
    advice = (
        "model.provider=native runs it"
        if model_type in MODEL_TYPES
        else f"neither does model.provider=native, which runs {', '.join(MODEL_TYPES)}"
    )
    raise CheckpointError(
        f"{source}: model type {model_type!r}: {PROVIDER} does not run it; allowed: {', '.join(FAMILIES)}; "
        f"{advice}"
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
    """Chooses representative layers; returns their counts and the config with these layers only.

    They are the first layer and the first layer with experts, to one of which each other layer is equal.

    config: the content of config.json that `arch` describes. all_layers: keeps all layers.
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
    """Yields an error if so many ranks do not divide the model's sizes, with the numbers that do."""
    undivided = _undivided(arch, size)
    if undivided:
        numbers = ", ".join(f"{name}={number}" for name, number in undivided.items())
        allowed = ", ".join(
            str(candidate) for candidate in range(1, arch.heads + 1) if not _undivided(arch, candidate)
        )
        yield f"parallel.model_parallel={size}: does not divide {numbers}; allowed for this model: {allowed}"


def _undivided(arch: Architecture, size: int) -> Mapping[str, int]:
    """Returns the sizes that the ranks do not divide, by key of config.json; the vocabulary is not padded."""
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
