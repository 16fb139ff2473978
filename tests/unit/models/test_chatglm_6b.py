"""config.json of ChatGLM-6B, the first generation."""

from typing import Any

import numpy as np
import pytest

from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture, BlockPositions2D
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from small_configs import BETWEEN, CHATGLM

SMALL = BETWEEN["chatglm_6b"] | {"model_type": "chatglm"}


def described(**settings: Any) -> Architecture:
    return describe(SMALL | settings)


def test_its_type_is_its_successors() -> None:
    assert describe(SMALL).model_type == "chatglm_6b"
    assert describe(SMALL, "chatglm").model_type == "chatglm_6b"
    assert describe(CHATGLM).model_type == "chatglm"
    with pytest.raises(ConfigError, match="model.type=llama"):
        describe(SMALL, "llama")


def test_positions() -> None:
    arch = described()
    assert arch.two_positions == BlockPositions2D(99, (98, 97))
    assert arch.rotary is not None
    assert arch.rotary.positions == 2
    rounded = (1e4 ** -np.array([0, 0.5], np.float32)).astype(np.float16)
    assert arch.rotary.inverse_frequencies == tuple(map(float, rounded))
    assert arch.normed_factor == pytest.approx(2.0)


def test_tensors() -> None:
    shapes = source_shapes(tensor_specs(described()))
    layer = "transformer.layers.1"
    assert shapes[f"{layer}.attention.query_key_value.weight"] == (96, 32)
    assert shapes[f"{layer}.mlp.dense_h_to_4h.bias"] == (48,)
    assert shapes["transformer.final_layernorm.bias"] == (32,)
    assert "lm_head.weight" not in shapes
    assert "lm_head.weight" in source_shapes(tensor_specs(described(tie_word_embeddings=False)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position_encoding_2d": False}, "position_encoding_2d=false: not supported"),
        ({"pre_seq_len": 128}, "pre_seq_len=128: not supported"),
        ({"quantization_bit": 4}, "quantization_bit=4: not supported"),
        ({"num_attention_heads": 3}, "hidden_size=32: must be divisible by num_attention_heads=3"),
        ({"num_attention_heads": 16}, "hidden_size=32: must give heads of a multiple of 4 numbers"),
        ({"gmask_token_id": 100}, "gmask_token_id=100: must be the id of a token, 0 to 99"),
        ({"mask_token_id": True}, "mask_token_id=true: must be the id of a token"),
        ({"image_length": 32}, "image_length=32: unknown key"),
    ],
)
def test_what_is_otherwise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        described(**settings)


def test_the_earliest_release_does_not_say_which_masks_it_has() -> None:
    config = {"model_type": "chatglm", "position_encoding_2d": True}
    assert describe(config).two_positions == BlockPositions2D(130004, (130001, 130000))
    with pytest.raises(
        CheckpointError, match="gmask_token_id=null: must be given where bos_token_id is not 130004"
    ):
        describe(config | {"bos_token_id": 150004, "vocab_size": 150528})
