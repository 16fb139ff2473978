"""chatglm_6b: ChatGLM-6B, the first generation: two positions for each token, prompts that see themselves.

Its config.json says model_type=chatglm, as those of its successors do. Sources: the behaviour of
modeling_chatglm.py in the published folder and of MindFormers 1.0's models/glm.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from mindbatch.architecture.architecture import Architecture, BlockPositions2D, Rotary
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_frequencies
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.layers.linear import LayerNorm
from mindbatch.models import ModelType, gpt_neox, llama

KEYS = SizeKeys(
    layers="num_layers",
    inner="inner_hidden_size",
    positions="max_sequence_length",
    epsilon="layernorm_epsilon",
    activation="",
)
NAMES = replace(gpt_neox.NAMES, layers="transformer.layers")
ENDS = ("transformer.word_embeddings", "transformer.final_layernorm", "lm_head")
THETA = 10000.0
START_ID = 130004  # bos_token_id of all releases but the earliest


def describe(reader: ConfigReader) -> Architecture:
    arch = read_sizes(reader, KEYS, bias=True)
    if arch.head_dim % 4:
        reader.error(
            "hidden_size", "must give heads of a multiple of 4 numbers: each half is rotated in pairs"
        )
    reader.needs("position_encoding_2d", [True])
    reader.needs("quantization_bit", [0])
    reader.needs("pre_seq_len", [None])
    reader.needs("prefix_projection", [False])
    return replace(
        arch,
        activation="gelu_tanh",
        rotary=_rotary(arch.head_dim),
        # Layer n divides its scores by n and multiplies them again: float16 does not overflow so.
        details=gpt_neox.GptNeoxDetails(adds_normed=True, normed_factor=math.sqrt(2 * arch.num_layers)),
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
            reader.error(key, f"must be given where bos_token_id is not {START_ID}")
    return BlockPositions2D(start, (_token(reader, "gmask_token_id"), _token(reader, "mask_token_id")))


def _token(reader: ConfigReader, key: str) -> int:
    last = reader.positive("vocab_size") - 1
    return reader.token_id(key, f"must be the id of a token, 0 to {last}; positions depend on it")


MODEL: ModelType = replace(
    gpt_neox.MODEL,
    describe=describe,
    tree=llama.with_blocks(partial(gpt_neox.block, names=NAMES), LayerNorm, ENDS),
    prefix="transformer.",
    unused_tensors=("*rotary_emb.inv_freq",),
)
