"""chatglm: its tensors follow from a configuration; what is laid out or computed otherwise is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import MODELS, contents, tensors_of, write_model

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


@pytest.mark.parametrize(
    ("settings", "message"),
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
)
def test_what_is_laid_out_otherwise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        shapes_of(**settings)


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
