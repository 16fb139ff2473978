"""chatglm: its tensors follow from a configuration; what is laid out or computed otherwise is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.architecture.architecture import Architecture, BlockPositions2D
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.models.gpt_neox import GptNeoxDetails
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import MODELS, contents, tensors_of, write_model
from small_configs import BETWEEN, CHATGLM

FIRST_GENERATION = BETWEEN["chatglm_6b"] | {"model_type": "chatglm"}


def described(**settings: Any) -> Architecture:
    return describe(FIRST_GENERATION | settings)


def test_its_type_is_its_successors() -> None:
    assert describe(FIRST_GENERATION).model_type == "chatglm_6b"
    assert describe(FIRST_GENERATION, "chatglm").model_type == "chatglm_6b"
    assert describe(CHATGLM).model_type == "chatglm"
    with pytest.raises(ConfigError, match="model.type=llama"):
        describe(FIRST_GENERATION, "llama")


def test_positions_in_two_dimensions() -> None:
    arch = described()
    assert arch.two_positions == BlockPositions2D(99, (98, 97))
    assert arch.rotary is not None
    assert arch.rotary.positions == 2
    rounded = (1e4 ** -np.array([0, 0.5], np.float32)).astype(np.float16)
    assert arch.rotary.inverse_frequencies == tuple(map(float, rounded))
    assert arch.details_of(GptNeoxDetails).normed_factor == pytest.approx(2.0)


def test_tensors_of_the_first_generation() -> None:
    shapes = source_shapes(tensor_specs(described()))
    layer = "transformer.layers.1"
    assert shapes[f"{layer}.attention.query_key_value.weight"] == (96, 32)
    assert shapes[f"{layer}.mlp.dense_h_to_4h.bias"] == (48,)
    assert shapes["transformer.final_layernorm.bias"] == (32,)
    assert "lm_head.weight" not in shapes
    assert "lm_head.weight" in source_shapes(tensor_specs(described(tie_word_embeddings=False)))


def test_the_earliest_release_does_not_say_which_masks_it_has() -> None:
    config = {"model_type": "chatglm", "position_encoding_2d": True}
    assert describe(config).two_positions == BlockPositions2D(130004, (130001, 130000))
    with pytest.raises(
        CheckpointError, match="gmask_token_id=null: must be given where bos_token_id is not 130004"
    ):
        describe(config | {"bos_token_id": 150004, "vocab_size": 150528})


CHATGLM3_6B: dict[str, Any] = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "use_cache": True,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The settings of the published model."""

SMALL = MODELS["chatglm"]


def shapes_of(**settings: Any) -> dict[str, tuple[int, ...]]:
    arch = describe({**CHATGLM3_6B, **settings}, to_be_run=False)
    return dict(source_shapes(tensor_specs(arch)))


def cut(source: Path, target: Path, ways: int, **options: Any) -> None:
    config = ReshardConfig(source=str(source), verify="true")
    config.target.dir, config.target.model_parallel = str(target), ways
    for name, value in options.items():
        setattr(config.target, name, value)
    assert run(config) == 0


def test_the_tensors_of_a_published_model() -> None:
    shapes = shapes_of()
    layer = "transformer.encoder.layers.27"
    assert {name: shape for name, shape in shapes.items() if name.startswith(f"{layer}.")} == {
        f"{layer}.input_layernorm.weight": (4096,),
        f"{layer}.self_attention.query_key_value.weight": (4608, 4096),
        f"{layer}.self_attention.query_key_value.bias": (4608,),
        f"{layer}.self_attention.dense.weight": (4096, 4096),
        f"{layer}.post_attention_layernorm.weight": (4096,),
        f"{layer}.mlp.dense_h_to_4h.weight": (27392, 4096),
        f"{layer}.mlp.dense_4h_to_h.weight": (4096, 13696),
    }
    assert {name: shape for name, shape in shapes.items() if "layers." not in name} == {
        "transformer.embedding.word_embeddings.weight": (65024, 4096),
        "transformer.encoder.final_layernorm.weight": (4096,),
        "transformer.output_layer.weight": (65024, 4096),
    }
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 6_243_584_000


def test_biases_of_all_layers() -> None:
    shapes = shapes_of(add_bias_linear=True)
    layer = "transformer.encoder.layers.0"
    assert shapes[f"{layer}.self_attention.dense.bias"] == (4096,)
    assert shapes[f"{layer}.mlp.dense_h_to_4h.bias"] == (27392,)
    assert shapes[f"{layer}.mlp.dense_4h_to_h.bias"] == (4096,)


def test_rope_ratio() -> None:
    """It multiplies the base; in ChatGLM2-6B-32K, which alone has 16, it divides the positions."""

    def frequencies(ratio: float) -> tuple[float, ...]:
        rotary = describe({**CHATGLM3_6B, "rope_ratio": ratio}).rotary
        assert rotary is not None
        assert rotary.is_interleaved
        return rotary.inverse_frequencies

    np.testing.assert_allclose(frequencies(50), 500_000.0 ** -(np.arange(32) / 32), rtol=1e-6)
    np.testing.assert_allclose(frequencies(16), 10_000.0 ** -(np.arange(32) / 32) / 16, rtol=1e-6)


@pytest.mark.parametrize("ways", [2, 8])
def test_it_is_cut_also_above_its_groups(tmp_path: Path, ways: int) -> None:
    """A rank of 8 has one query head, and the key and value head that it shares with its neighbour."""
    source = write_model(tmp_path / "source", SMALL)
    cut(source, tmp_path / "cut", ways)
    cut(tmp_path / "cut", tmp_path / "whole", 1)
    assert contents(tmp_path / "whole") == contents(source)
    name = "transformer.encoder.layers.1.self_attention.query_key_value.weight"
    full = tensors_of(SMALL)[name]
    rank, width, heads = ways - 1, 4, 8 // ways
    shared = max(1, 4 // ways)
    rows = [(rank * heads, heads), (8 + 4 - shared, shared), (12 + 4 - shared, shared)]
    expected = np.concatenate([full[first * width : (first + count) * width] for first, count in rows])
    _, shape, data = contents(tmp_path / "cut")[rank][name]
    assert (shape, data) == (expected.shape, expected.tobytes())


def test_fused_heads_that_ranks_share_get_no_other_names(tmp_path: Path) -> None:
    """Nobody could tell from such a slice which of its rows are queries."""
    source = write_model(tmp_path / "source", SMALL)
    with pytest.raises(ConfigError, match=r"target\.names=mindformers: model_parallel=8 is above the 4"):
        cut(source, tmp_path / "cut", 8, names="mindformers")
    cut(source, tmp_path / "cut", 8)
    with pytest.raises(ConfigError, match=r"target\.names=mindformers: model_parallel=8"):
        cut(tmp_path / "cut", tmp_path / "again", 8, names="mindformers")


REFUSED: list[tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = [
    (
        CHATGLM3_6B,
        [
            ({"multi_query_attention": False}, "multi_query_attention=false: not supported"),
            ({"multi_query_group_num": 5}, "multi_query_group_num=5: must divide num_attention_heads=32"),
            ({"num_hidden_layers": 40}, "num_hidden_layers=40: not supported; allowed: 28"),
            ({"pre_seq_len": 128}, "pre_seq_len=128: not supported"),
            ({"apply_residual_connection_post_layernorm": True}, "post_layernorm=true: not supported"),
            ({"rmsnorm": False}, "rmsnorm=false: not supported"),
            ({"original_rope": False}, "original_rope=false: not supported"),
            ({"quantization_bit": 4}, "quantization_bit=4: not supported"),
            ({"kv_channels": 90}, "kv_channels=90: must be divisible by 4"),
        ],
    ),
    (
        FIRST_GENERATION,
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
    ),
]


@pytest.mark.parametrize(
    ("base", "settings", "message"), [(base, *case) for base, refused in REFUSED for case in refused]
)
def test_what_is_laid_out_otherwise_is_refused(
    base: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        describe(base | settings, to_be_run=False)
