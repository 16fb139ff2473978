"""Makes the configuration of a published model small: sizes alone change, in the proportions that they have.

Everything that decides what a network computes stays: kinds of layers, how many query heads share a key head,
which part of a head is rotated, scalings, factors, flags, and the keys that mean nothing.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

VOCABULARY, HEAD_DIM, WINDOW, INNER, EXPERTS, RANK = 128, 16, 8, 40, 8, 16
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_INNER = (
    *(
        "intermediate_size",
        "intermediate_size_mlp",
        "shared_expert_intermediate_size",
        "mlp_intermediate_size",
    ),
    *("moe_intermediate_size", "ffn_dim", "d_ff", "n_inner", "block_ff_dim", "ffn_hidden_size"),
)
_PERIODS = (
    *("sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval", "decoder_sparse_step"),
    *("interleave_moe_layer_step", "_sliding_window_pattern"),
)
_LISTED_LAYERS = ("mlp_only_layers", "full_attn_idxs", "moe_layers")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_AT_MOST = {
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token", "moe_k"), 3),
    **dict.fromkeys(("first_k_dense_replace", "num_global_key_value_heads"), 1),
    **dict.fromkeys(("topk_group", "n_shared_experts", "moe_num_shared_experts", "index_n_heads"), 2),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "block_multiple_of"), WINDOW),
    **dict.fromkeys(("hidden_size_per_layer_input", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "index_head_dim"), RANK),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **{"n_group": 4, "global_head_dim": 2 * HEAD_DIM, "d_kv": 8, "linear_num_key_heads": 2},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12},
}
_TOKENS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("mask_token_id", "gmask_token_id"),
)
_PARTS = ("vision_config", "audio_config")
_TOWER = {
    **dict.fromkeys(("depth", "num_hidden_layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("hidden_size", "intermediate_size", "output_proj_dims"), 2 * HEAD_DIM),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), 2 * HEAD_DIM),
    **{"head_dim": HEAD_DIM, "global_head_dim": HEAD_DIM, "num_position_embeddings": 16},
    **{"position_embedding_size": 16, "default_output_length": 4},
}


def small(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with sizes of a few numbers; of weights in floats, however it stores them."""
    made = deepcopy({key: config[key] for key in config if key != "quantization_config"})
    text = made.get("text_config", made)
    text.pop("quantization_config", None)
    # Where files leave these to the class, they are its largest.
    if text is not made:
        made.setdefault("vision_config", dict(_TOWER))
    text.setdefault("vocab_size", VOCABULARY)
    if _first(text, _LAYERS) is None:
        text["num_hidden_layers"] = 3
    _shrink(text)
    text.setdefault("pad_token_id", 0)  # classes have tokens of their own vocabulary
    for part in (made, text):
        part.update({key: _token(part[key]) for key in _TOKENS if part.get(key) is not None})
    for name in _PARTS:
        if isinstance(made.get(name), dict):
            _shrink_tower(made[name], text)
    return made


def _token(value: Any) -> Any:
    return [token % VOCABULARY for token in value] if isinstance(value, list) else value % VOCABULARY


def _first(part: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((part[key] for key in keys if isinstance(part.get(key), int)), None)


def _shrink(part: dict[str, Any]) -> None:
    published = dict(part)
    hidden, heads, kv_heads = (_first(part, keys) for keys in (_HIDDEN, _HEADS, _KV_HEADS))
    head_dim = part.get("head_dim") or (hidden // heads if hidden and heads else HEAD_DIM)
    _shrink_layers(part)
    few_kv = min(kv_heads or 3, 2) if kv_heads else 3
    few = few_kv * min((heads or 1) // kv_heads, 2) if kv_heads else 3
    width = few * HEAD_DIM + (0 if hidden == (heads or 0) * head_dim else HEAD_DIM)
    if heads is None:  # the class has 32 at most
        width = 32 * HEAD_DIM
    for keys, size in ((_HIDDEN, width), (_HEADS, few), (_KV_HEADS, few_kv)):
        part.update({key: size for key in keys if isinstance(part.get(key), int)})
    for key in ("head_dim", "attention_head_dim"):
        if part.get(key) is not None:
            part[key] = HEAD_DIM
    part.update({key: min(part[key], most) for key, most in _AT_MOST.items() if part.get(key) is not None})
    part.update({key: min(part[key], EXPERTS) for key in _EXPERTS if part.get(key) is not None})
    for key in _INNER:
        if part.get(key):
            part[key] = 4 * width if published[key] == 4 * (hidden or 0) else INNER
    for key in ("conv_dim", "conv_dim_out", "block_dim", "word_embed_proj_dim"):
        if part.get(key) is not None:
            part[key] = width if published[key] == hidden else width // 2
    if part.get("rotary_dim"):
        part["rotary_dim"] = part["rotary_dim"] * HEAD_DIM // head_dim
    if part.get("linear_num_value_heads"):
        ratio = published["linear_num_value_heads"] // published["linear_num_key_heads"]
        part["linear_num_value_heads"] = part["linear_num_key_heads"] * min(ratio, 2)
    if "qk_rope_head_dim" in part:
        _shrink_latent(part, published)
    _shrink_rotation(part)


def _shrink_layers(part: dict[str, Any]) -> None:
    """Keeps the first layers, of each kind at least one."""
    layers = _first(part, _LAYERS)
    if layers is None:
        return
    lists = {key: part[key] for key in part if isinstance(part[key], list) and len(part[key]) == layers}
    periods = [part[key] for key in _PERIODS if isinstance(part.get(key), int)]
    firsts = [max(kinds.index(kind) for kind in kinds) + 1 for kinds in lists.values()]
    few = min(layers, max([3, *periods, *firsts]))
    if part.get("num_kv_shared_layers"):
        few, part["num_kv_shared_layers"] = 2 * few, few
    part.update({key: few for key in _LAYERS if isinstance(part.get(key), int)})
    part.update({key: kinds[:few] for key, kinds in lists.items()})
    part.update({key: [i for i in part[key] if i < few] for key in _LISTED_LAYERS if part.get(key)})
    for key, largest in (("max_window_layers", few), ("moe_layer_end_index", few - 1)):
        if part.get(key) is not None:
            part[key] = min(part[key], largest)


def _shrink_latent(part: dict[str, Any], published: Mapping[str, Any]) -> None:
    """Heads of latent attention; head_dim is what it was of them."""
    part["num_attention_heads"] = part["num_key_value_heads"] = 2
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    both = part[names[0]] + part[names[1]]
    if published.get("qk_head_dim") is not None:
        part["qk_head_dim"] = both
    if published.get("head_dim") is not None:
        same = [name for name in names if published[name] == published["head_dim"]]
        part["head_dim"] = part[same[0]] if same else both


def _shrink_rotation(part: dict[str, Any]) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        settings = part.get(key)
        if not isinstance(settings, dict):
            continue
        share = settings.get("partial_rotary_factor", part.get("partial_rotary_factor", 1.0))
        pairs = int(HEAD_DIM * share) // 2
        for name in ("short_factor", "long_factor"):
            if name in settings:
                settings[name] = settings[name][:pairs]
        if "mrope_section" in settings:
            settings["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]


def _shrink_tower(tower: dict[str, Any], text: Mapping[str, Any]) -> None:
    tower.update({key: size for key, size in _TOWER.items() if isinstance(tower.get(key), int)})
    if "image_size" in tower:
        tower["image_size"] = 4 * tower.get("patch_size", 4)
    if "out_hidden_size" in tower:
        tower["out_hidden_size"] = text["hidden_size"]


_CONSTANTS = {"act_fn.beta": 0.5, "act_fn.eps": -1e-6}
"""Of xIELU, which files have beside its slopes."""


def description(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> dict[str, Any]:
    """A folder of such tensors, with random numbers: see `model_folders.write_folder`."""
    return {
        "config": config,
        "tensors": {name: [shape, *_drawn(name, shape)] for name, shape in shapes.items()},
        "dtype": "float32",
        "shards": 1,
    }


def _drawn(name: str, shape: list[int]) -> tuple[float, ...]:
    """Spread of the numbers, and their centre where the name does not say it."""
    constant = next((value for end, value in _CONSTANTS.items() if name.endswith(end)), None)
    if constant is not None:
        return 0.0, constant
    return (0.3 if len(shape) < 2 else 2.5 / shape[-1] ** 0.5,)
