"""chatglm_6b: ChatGLM-6B, the first generation: two positions for each token, prompts that see themselves.

Its config.json says model_type=chatglm, as those of its successors do. Sources: the behaviour of
modeling_chatglm.py in the published folder and of MindFormers 1.0's models/glm.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from mindbatch.layers.norm import LayerNorm
from mindbatch.models import gpt_neox, llama
from mindbatch.models.architecture import Architecture, BlockPositions2D, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import plain_frequencies

ENDS = ("transformer.word_embeddings", "transformer.final_layernorm", "lm_head")
THETA = 10000.0
START_ID = 130004  # bos_token_id of all releases but the earliest


def describe(reader: ConfigReader) -> Architecture:
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_layers")
    heads = reader.positive("num_attention_heads")
    head_dim = gpt_neox.whole_heads(reader, "hidden_size", hidden, heads, "num_attention_heads")
    if head_dim % 4:
        reader.fault(
            "hidden_size", "must give heads of a multiple of 4 numbers: each half is rotated in pairs"
        )
    reader.needs("position_encoding_2d", [True])
    reader.needs("quantization_bit", [0])
    reader.needs("pre_seq_len", [None])
    reader.needs("prefix_projection", [False])
    return Architecture(
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("inner_hidden_size"),
        max_positions=reader.positive("max_sequence_length"),
        norm_epsilon=reader.number("layernorm_epsilon"),
        activation="gelu_tanh",
        tied=reader.flag("tie_word_embeddings"),
        rotary=_rotary(head_dim),
        # Layer n divides its scores by n and multiplies them again: float16 does not overflow so.
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        adds_normed=True,
        normed_factor=math.sqrt(2 * layers),
        two_positions=_two_positions(reader),
    )


def _rotary(head_dim: int) -> Rotary:
    """The frequencies of half a head, rounded to float16 as the model was trained with them."""
    rounded = plain_frequencies(THETA, max(2, head_dim // 2)).astype(np.float16)
    return Rotary(tuple(map(float, rounded)), positions=2)


def _two_positions(reader: ConfigReader) -> BlockPositions2D:
    start = _token(reader, "bos_token_id")
    for key in ("gmask_token_id", "mask_token_id"):
        # The earliest release has other ids, and those of its masks in its code alone.
        if not reader.has(key) and start != START_ID:
            reader.fault(key, f"must be given where bos_token_id is not {START_ID}")
    return BlockPositions2D(start, (_token(reader, "gmask_token_id"), _token(reader, "mask_token_id")))


def _token(reader: ConfigReader, key: str) -> int:
    token_id, size = reader.value(key), reader.positive("vocab_size")
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < size:
        reader.fault(key, f"must be the id of a token, 0 to {size - 1}; positions depend on it")
        return 0
    return token_id


MODEL: ModelType = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=llama.with_blocks(partial(gpt_neox.block, layers="transformer.layers"), LayerNorm, ENDS),
    prefix="transformer.",
    unused_tensors=("*rotary_emb.inv_freq",),
)
