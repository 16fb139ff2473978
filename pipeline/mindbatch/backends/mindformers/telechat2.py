"""TeleChat2 (`telechat`): how its config.json is read, whose keys and tensors have names of their own."""

from __future__ import annotations

from typing import Any

from mindbatch.backends.mindformers import config_keys as keys
from mindbatch.backends.mindformers.description import Description, GroupedAttention
from mindbatch.models.config_reader import ConfigReader

OWN_NAMES = (
    ("model.embed_tokens.", "transformer.word_embeddings."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    (".self_attn.q_proj.", ".self_attention.query."),
    (".self_attn.kv_proj.", ".self_attention.key_value."),
    (".self_attn.o_proj.", ".self_attention.dense."),
)
"""Of its tensors, as parts of Llama's names and of its own."""

# Of implementations and of training, and alibi, which its positions are not.
_WITHOUT_EFFECT = (
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "seq_length",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "slow_but_exact",
)


def describe(reader: ConfigReader) -> Description:
    """A Llama with biases behind attention and MLP; faults are left in the reader."""
    keys.refuse_code(reader)
    reader.needs("hidden_act", ["silu"])
    keys.never(
        reader,
        *("apply_residual_connection_post_layernorm", "embed_layernorm", "logn", "n_inner", "rope_scaling"),
    )
    reader.ignore(_WITHOUT_EFFECT)
    hidden, heads, layers = (
        reader.positive("hidden_size"),
        reader.positive("n_head"),
        reader.positive("n_layer"),
    )
    reader.needs("n_embed", [hidden])
    reader.needs("num_hidden_layers", [layers])
    reader.needs("num_attention_heads", [heads])
    if hidden % heads or hidden // heads % 2:
        reader.fault("n_head", f"must divide hidden_size={hidden} into heads of an even size")
    positions = _positions(reader)
    arguments: dict[str, Any] = {
        "vocab_size": reader.positive("vocab_size"),
        "hidden_size": hidden,
        "ffn_hidden_size": reader.positive("ffn_hidden_size"),
        "n_layer": layers,
        "n_head": heads,
        "num_key_value_heads": keys.kv_heads(reader, heads),
        "layer_norm_epsilon": reader.number("layer_norm_epsilon"),
        "max_position_embeddings": positions,
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "rope_theta": reader.number("rope_theta"),
    }
    return Description(
        model_type="telechat",
        vocab_size=arguments["vocab_size"],
        hidden_size=hidden,
        num_layers=layers,
        intermediate_size=arguments["ffn_hidden_size"],
        max_positions=positions,
        attention=GroupedAttention(
            heads, arguments["num_key_value_heads"], hidden // heads, output_bias=True, fused_kv=True
        ),
        arguments=arguments,
        tied=arguments["tie_word_embeddings"],
        down_bias=True,
        own_names=OWN_NAMES,
        layers_key="n_layer",
    )


def _positions(reader: ConfigReader) -> int:
    """Positions up to which its rotations are those of one base.

    Its own code makes the base larger where training_seqlen is above base_seqlen, and for longer texts.
    The first TeleChat, of the same model_type, has no such key and scales beyond another length.
    """
    trained, unscaled = reader.positive("training_seqlen"), reader.raw("base_seqlen")
    if unscaled is None:
        reader.fault("base_seqlen", "TeleChat2's config.json has it; the first TeleChat is not run")
        return trained
    if trained > reader.positive("base_seqlen"):
        reader.fault(
            "training_seqlen", f"above base_seqlen={unscaled} rotations are scaled; {keys.NOT_COMPUTED}"
        )
    return min(trained, reader.positive("max_position_embeddings", trained))
