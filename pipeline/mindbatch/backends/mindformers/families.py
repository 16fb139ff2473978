"""The families of models that MindFormers 1.9 runs: the one table, and how each config.json is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mindbatch.backends.mindformers import config_defaults as defaults
from mindbatch.backends.mindformers import config_keys as keys
from mindbatch.backends.mindformers import telechat2
from mindbatch.backends.mindformers.description import Description, GroupedAttention
from mindbatch.errors import CheckpointError
from mindbatch.models.config_reader import NONE_IGNORED, ConfigReader, IgnoredKeys
from mindbatch.models.foreign_models import foreign_model
from mindbatch.models.qwen2 import read_windows
from mindbatch.models.registry import MODEL_TYPES, newer_names

PROVIDER = "model.provider=mindformers"
NOT_ON_ASCEND = (
    f"lora.adapters: not beside a model of {PROVIDER} on Ascend; allowed: one, with lora.mode=merge, "
    "model.provider=native, or runtime.device_target=CPU"
)


@dataclass(frozen=True)
class Family:
    """Models of one model_type.

    package, stem: mindformers.models.{package} has modules modeling_{stem}_infer and configuration_{stem}.
    network, configuration: their classes Inference{network}ForCausalLM and {configuration}Config.
    defaults: what transformers takes for a key that is absent.
    names: of tensors that MindFormers' own list of names lacks, as (part of Hugging Face's, part of its own).
    """

    package: str
    stem: str
    network: str
    configuration: str
    describe: Callable[[ConfigReader], Description]
    defaults: Mapping[str, Any]
    names: tuple[tuple[str, str], ...] = ()


def describe(
    config: Mapping[str, Any], source: str = "config.json", *, ignore: IgnoredKeys = NONE_IGNORED
) -> Description:
    """The model that a Hugging Face configuration asks for.

    ignore: keys that the user takes to be without effect.

    Raises:
        CheckpointError: a family that MindFormers does not run, or every key that is wrong, not understood or
            not computed by it.
    """
    family = family_of(config, source, ignore)
    newer = newer_names(config["model_type"])
    reader = ConfigReader(config, source, family.defaults, ignore, newer)
    description = family.describe(reader)
    reader.finish()
    return description


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


@contextmanager
def naming_provider(config: Mapping[str, Any], ignore: IgnoredKeys = NONE_IGNORED) -> Iterator[None]:
    """Adds to a CheckpointError, which refuses the model as one of ours, that MindFormers would run it."""
    try:
        yield
    except CheckpointError as error:
        model_type = config.get("model_type")
        if model_type not in FAMILIES or model_type in MODEL_TYPES or foreign_model(config, ignore.names):
            raise
        *others, last = error.faults
        raise CheckpointError([*others, f"{last}; {PROVIDER} runs it"]) from error


def _grouped(
    reader: ConfigReader,
    arguments: Mapping[str, Any],
    attention: GroupedAttention,
    **others: Any,
) -> Description:
    """A model with grouped attention; `others` are further fields of the description."""
    return Description(
        model_type=str(reader.value("model_type")),
        vocab_size=arguments["vocab_size"],
        hidden_size=arguments["hidden_size"],
        num_layers=arguments["num_hidden_layers"],
        intermediate_size=arguments["intermediate_size"],
        max_positions=keys.positions(arguments),
        attention=attention,
        arguments=arguments,
        tied=arguments["tie_word_embeddings"],
        **others,
    )


def _heads(arguments: Mapping[str, Any], **others: bool) -> GroupedAttention:
    return GroupedAttention(
        arguments["num_attention_heads"], arguments["num_key_value_heads"], arguments["head_dim"], **others
    )


def _plain(reader: ConfigReader, *, qkv_bias: bool = False, yarn: bool = True) -> dict[str, Any]:
    """The arguments of Llama's relatives. yarn: whether they may scale their rotations by it."""
    found = keys.sizes(reader)
    found["head_dim"] = keys.head_dim(reader, found)
    found["attention_bias"] = qkv_bias
    found |= keys.rotary(reader, found["head_dim"], found["max_position_embeddings"], yarn=yarn)
    return found


def _no_windows(reader: ConfigReader) -> None:
    if any(read_windows(reader)):
        reader.fault(
            "use_sliding_window",
            f"{keys.NOT_COMPUTED}; allowed: false, or model.provider=native",
        )


def _qwen2(reader: ConfigReader) -> Description:
    arguments = _plain(reader, qkv_bias=True)
    _no_windows(reader)
    return _grouped(reader, arguments, _heads(arguments, qkv_bias=True))


def _qwen3(reader: ConfigReader) -> Description:
    arguments = _plain(reader)
    _no_windows(reader)
    keys.never(reader, "attention_bias")
    return _grouped(reader, arguments, _heads(arguments, qk_norm=True))


def _qwen3_moe(reader: ConfigReader) -> Description:
    arguments = _plain(reader)
    keys.never(reader, "attention_bias", "use_sliding_window", "mlp_only_layers")
    reader.needs("decoder_sparse_step", [1])
    reader.ignore(["sliding_window", "max_window_layers", "layer_types"])
    experts = keys.experts(reader, "num_experts")
    arguments |= {
        "num_experts": experts.count,
        "moe_intermediate_size": experts.width,
        "num_experts_per_tok": reader.positive("num_experts_per_tok"),
        "norm_topk_prob": reader.flag("norm_topk_prob"),
    }
    return _grouped(reader, arguments, _heads(arguments, qk_norm=True), experts=experts)


def _partly_rotated(reader: ConfigReader) -> dict[str, Any]:
    """The arguments of the GLM-4 families, which rotate the first part of each head."""
    found = keys.sizes(reader)
    size = found["head_dim"] = keys.head_dim(reader, found)
    share = found["partial_rotary_factor"] = reader.number("partial_rotary_factor")
    rotated = int(size * share)
    if share > 1 or rotated < 2 or rotated % 2:
        reader.fault("partial_rotary_factor", f"must leave an even part of head_dim={size}")
    if reader.value("rope_scaling"):
        reader.fault("rope_scaling", f"{keys.NOT_COMPUTED} for this family; allowed: null")
    found["attention_bias"] = reader.flag("attention_bias")
    return found


def _glm4(reader: ConfigReader) -> Description:
    arguments = _partly_rotated(reader)
    if arguments["partial_rotary_factor"] != 0.5:
        reader.fault("partial_rotary_factor", f"{keys.NOT_COMPUTED}; allowed: 0.5")
    attention = _heads(arguments, qkv_bias=arguments["attention_bias"])
    return _grouped(reader, arguments, attention, fused_mlp=True, sandwich_norms=True)


def _glm4_moe(reader: ConfigReader) -> Description:
    arguments = _partly_rotated(reader)
    experts, routing = keys.shared_experts(reader)
    arguments |= routing | {"use_qk_norm": reader.flag("use_qk_norm")}
    attention = _heads(arguments, qkv_bias=arguments["attention_bias"], qk_norm=arguments["use_qk_norm"])
    further = reader.value("num_nextn_predict_layers") or 0
    return _grouped(reader, arguments, attention, experts=experts, next_token_layers=further)


def _deepseek_v3(reader: ConfigReader) -> Description:
    arguments = keys.sizes(reader)
    keys.never(reader, "attention_bias", "tie_word_embeddings")
    reader.needs("rope_interleave", [True])
    reader.needs("moe_layer_freq", [1])
    reader.needs("topk_method", ["noaux_tc"])
    reader.needs("scoring_func", ["sigmoid"])
    reader.ignore(["ep_size", "seq_aux", "head_dim", "qk_head_dim"])  # the last two are made of others
    attention, latent = keys.latent(reader, arguments["num_attention_heads"])
    experts, routing = keys.shared_experts(reader)
    arguments |= latent | routing | _latent_rotary(reader, attention.rotary_dim, arguments)
    return Description(
        model_type="deepseek_v3",
        vocab_size=arguments["vocab_size"],
        hidden_size=arguments["hidden_size"],
        num_layers=arguments["num_hidden_layers"],
        intermediate_size=arguments["intermediate_size"],
        max_positions=keys.positions(arguments),
        attention=attention,
        arguments=arguments,
        experts=experts,
        next_token_layers=reader.value("num_nextn_predict_layers") or 0,
    )


def _latent_rotary(reader: ConfigReader, size: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """MindFormers takes YaRN with a factor of 40 where nothing else is said."""
    found = keys.rotary(reader, size, arguments["max_position_embeddings"])
    if not found:
        return {"rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    scales = [found["rope_scaling"].get(key) for key in keys.LATENT_SCALES]
    if not scales[0] or scales[0] != scales[1]:
        reader.fault("rope_scaling", "mscale and mscale_all_dim must be equal and above 0")
    return found


def _telechat3(reader: ConfigReader) -> Description:
    arguments = _plain(reader, yarn=False)  # MindFormers has factors of its own for it, and we no reference
    _no_windows(reader)
    keys.never(
        reader,
        *("attention_bias", "mlp_bias", "embed_layernorm", "share_attention", "share_ffn", "logn"),
    )
    reader.ignore(["training_seqlen", "base_seqlen"])
    further = reader.value("num_nextn_predict_layers") or 0
    return _grouped(reader, arguments, _heads(arguments), next_token_layers=further)


_QK_NORM = (
    (".self_attn.q_norm.", ".self_attention.q_layernorm."),
    (".self_attn.k_norm.", ".self_attention.k_layernorm."),
)
FAMILIES: dict[str, Family] = {
    "qwen2": Family("qwen2", "qwen2", "Qwen2", "Qwen2", _qwen2, defaults.QWEN),
    "qwen3": Family("qwen3", "qwen3", "Qwen3", "Qwen3", _qwen3, defaults.QWEN3),
    "qwen3_moe": Family("qwen3_moe", "qwen3_moe", "Qwen3Moe", "Qwen3Moe", _qwen3_moe, defaults.QWEN3_MOE),
    "glm4": Family("glm4", "glm4", "Glm4", "Glm4", _glm4, defaults.GLM4),
    "glm4_moe": Family("glm4_moe", "glm4_moe", "Glm4Moe", "Glm4Moe", _glm4_moe, defaults.GLM4_MOE, _QK_NORM),
    "deepseek_v3": Family(
        "deepseek3", "deepseek_v3", "DeepseekV3", "DeepseekV3", _deepseek_v3, defaults.DEEPSEEK_V3
    ),
    "telechat3": Family("telechat3", "telechat3", "Telechat3", "TeleChat3", _telechat3, defaults.TELECHAT3),
    "telechat": Family(
        "telechat2", "telechat2", "Telechat2", "Telechat2", telechat2.describe, defaults.TELECHAT2
    ),
}
