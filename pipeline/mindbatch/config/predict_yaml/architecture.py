"""Keys that describe the model: compared with config.json of its folder, which is what counts here."""

import math
from collections.abc import Mapping
from typing import Any

from mindbatch.config.paths import resolve_path
from mindbatch.hub.models import cached_model
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.strict_json import JsonFault, StrictReader
from mindbatch.models.config_forms import older_form
from mindbatch.models.registry import newer_names

LARGEST_CONFIG = 1 << 20
_READER = StrictReader(max_depth=32)

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer")
_HEADS = ("num_attention_heads", "num_heads", "n_head")
_GROUPS = ("num_key_value_heads", "multi_query_group_num", *_HEADS)
_EPSILON = ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon", "layer_norm_eps")
_INNER = ("intermediate_size", "ffn_hidden_size", "n_inner")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_BIAS = ("attention_bias", "add_qkv_bias")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")

ALIASES: dict[str, tuple[str, ...]] = {
    **{name: names for names in (_LAYERS, _HEADS, _EPSILON, _INNER, _BIAS, _EXPERTS) for name in names},
    **dict.fromkeys(("n_kv_heads", "num_query_groups", *_GROUPS[:2]), _GROUPS),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocab_size": _VOCABULARY,
    "padded_vocab_size": _VOCABULARY[::-1],
    "kv_channels": ("kv_channels", "head_dim"),
    "head_dim": ("head_dim", "kv_channels"),
    "theta": ("rope_theta",),
    "rotary_base": ("rope_theta",),
    "scaling_factor": ("rope_scaling",),
    "rotary_scaling_factor": ("rope_scaling",),
    "hidden_act": ("hidden_act", "activation_function"),
    "qkv_has_bias": _BIAS,
    "mlp_has_bias": ("mlp_bias",),
    "add_bias_linear": ("add_bias_linear", "mlp_bias"),
    "num_moe_experts": _EXPERTS,
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor",),
    "shared_expert_num": ("n_shared_experts",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
}
"""What config.json calls a key of the network, where not only by the key's own name."""
_ALIKE = {"gelu": ("gelu_new", "gelu_pytorch_tanh"), "fast_gelu": ("quick_gelu",), "silu": ("swish",)}


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
    except (OSError, ValueError, JsonFault):
        return None
    if not isinstance(content, dict):
        return None
    return older_form(content, newer_names(content.get("model_type"))).content


def config_entry(leaf: str, config: Mapping[str, Any] | None) -> tuple[str, Any] | None:
    """Name and value in config.json of the key `leaf` of the network; None where it says nothing of it."""
    names = ALIASES.get(leaf, (leaf,))
    return next(((name, config[name]) for name in names if config and config.get(name) is not None), None)


def agrees(value: Any, name: str, counting: Any) -> bool:
    """True if the value of a predict YAML means what config.json says under `name`."""
    if name == "rope_scaling" and not isinstance(value, Mapping):
        value = {"factor": value}
    return _is_same(value, counting) or counting in _ALIKE.get(str(value), ())


def _is_same(one: Any, other: Any) -> bool:
    """Equal, mappings in all parts of the first; a number is also one where YAML has a text, as 1e-5 is."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_is_same(part, other.get(name)) for name, part in one.items())
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)
