"""Names of MindFormers: what each of its tensors is made of, and the way back."""

from dataclasses import replace

import numpy as np
import pytest
from names_applied import numbered, original_arrays, stored_arrays

from mindbatch.checkpoint.names.dialect import Heads, Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import to_huggingface, to_mindformers
from mindbatch.checkpoint.placement.proof import side_faults
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes

LLAMA = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = {
    "llama": {"model_type": "llama", **LLAMA},
    "mistral": {"model_type": "mistral", **LLAMA},
    "qwen2": {"model_type": "qwen2", **LLAMA},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 21,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 8,
        "n_positions": 8,
    },
    "pangu_alpha": {
        "model_type": "gpt_pangu",
        "vocab_size": 21,
        "hidden_size": 16,
        "num_layers": 3,
        "num_heads": 8,
        "max_position_embeddings": 8,
    },
}
FUSED = Options(qkv_concat=True)
JOINED = Options(qkv_concat=True, grouped=False)
CASES = [(name, Options()) for name in CONFIGS] + [("llama", FUSED), ("qwen2", FUSED), ("llama", JOINED)]
BLOCK = "model.layers.1"


def names_of(model_type, options, shapes=None):
    arch = describe(CONFIGS[model_type])
    shapes = shapes or dict(source_shapes(tensor_specs(arch)))
    rules = dialect(model_type, replace(options, num_layers=arch.num_layers))
    return to_mindformers(rules, shapes, heads_of(arch))


@pytest.mark.parametrize(("model_type", "options"), CASES)
def test_there_and_back_is_the_same(model_type, options):
    there = names_of(model_type, options)
    assert not [*side_faults("target", there)]
    arrays = numbered(there.shapes)
    arch = describe(CONFIGS[model_type])
    rules = dialect(model_type, replace(options, num_layers=arch.num_layers))
    back = to_huggingface(rules, there.stored_shapes(0), heads_of(arch))
    assert back.shapes == there.shapes
    made = original_arrays(back, stored_arrays(there, arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(made[name], array)


def test_llama_names():
    stored = names_of("llama", Options()).stored_shapes(0)
    assert set(stored) == {
        "model.tok_embeddings.embedding_weight", "model.norm_out.weight", "lm_head.weight",
        *(
            f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in (
                "attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
                "feed_forward.w2", "feed_forward.w3", "attention_norm", "ffn_norm",
            )
        ),
    }  # fmt: skip


def test_grouped_queries_keys_and_values():
    names = names_of("llama", FUSED)
    arrays = numbered(names.shapes)
    query, key, value = (arrays[f"{BLOCK}.self_attn.{which}_proj.weight"] for which in "qkv")
    groups = [
        np.concatenate([query[4 * g : 4 * g + 4], key[2 * g : 2 * g + 2], value[2 * g : 2 * g + 2]])
        for g in range(4)
    ]
    made = stored_arrays(names, arrays)
    np.testing.assert_array_equal(made[f"{BLOCK}.attention.w_qkv.weight"], np.concatenate(groups))
    gate, up = (arrays[f"{BLOCK}.mlp.{which}_proj.weight"] for which in ("gate", "up"))
    rows = made[f"{BLOCK}.feed_forward.w_gate_hidden.weight"]
    np.testing.assert_array_equal(rows[0::2], gate)
    np.testing.assert_array_equal(rows[1::2], up)


def test_grouped_biases_are_grouped_as_their_weights():
    names = names_of("qwen2", FUSED)
    arrays = numbered(names.shapes)
    bias = stored_arrays(names, arrays)[f"{BLOCK}.attention.w_qkv.bias"]
    np.testing.assert_array_equal(bias[:4], arrays[f"{BLOCK}.self_attn.q_proj.bias"][:4])
    np.testing.assert_array_equal(bias[4:6], arrays[f"{BLOCK}.self_attn.k_proj.bias"][:2])


def test_joined_sections_follow_each_other():
    names = names_of("llama", JOINED)
    arrays = numbered(names.shapes)
    expected = np.concatenate([arrays[f"{BLOCK}.self_attn.{which}_proj.weight"] for which in "qkv"])
    np.testing.assert_array_equal(stored_arrays(names, arrays)[f"{BLOCK}.attention.w_qkv.weight"], expected)


def test_gpt2_cuts_and_transposes_its_fused_matrix():
    names = names_of("gpt2", Options())
    arrays = numbered(names.shapes)
    made = stored_arrays(names, arrays)
    fused, bias = (arrays[f"transformer.h.1.attn.c_attn.{end}"] for end in ("weight", "bias"))
    for number in range(3):
        part = slice(16 * number, 16 * number + 16)
        dense = f"backbone.blocks.1.attention.dense{number + 1}"
        np.testing.assert_array_equal(made[f"{dense}.weight"], fused[:, part].T)
        np.testing.assert_array_equal(made[f"{dense}.bias"], bias[part])
    same = {
        "attention.projection.weight": "attn.c_proj.weight", "output.mapping.weight": "mlp.c_fc.weight",
        "output.projection.bias": "mlp.c_proj.bias", "layernorm1.gamma": "ln_1.weight",
        "layernorm2.beta": "ln_2.bias",
    }  # fmt: skip
    for stored, original in same.items():
        np.testing.assert_array_equal(
            made[f"backbone.blocks.1.{stored}"], arrays[f"transformer.h.1.{original}"]
        )
    assert made["backbone.embedding.position_embedding.embedding_table"].shape == (8, 16)


def test_the_last_layer_of_pangu_alpha_stands_apart():
    names = names_of("pangu_alpha", Options())
    arrays = numbered(names.shapes)
    made = stored_arrays(names, arrays)
    same = {
        "backbone.embedding.word_embedding.embedding_table": "transformer.wte.weight",
        "backbone.top_query_embedding.embedding_table": "transformer.wqe.weight",
        "backbone.blocks.1.attention.dense3.weight": "transformer.h.1.attn.v_proj.weight",
        "backbone.top_query_layer.attention.dense1.bias": "transformer.h.2.attn.q_proj.bias",
        "backbone.top_query_layer.layernorm2.gamma": "transformer.h.2.ln_2.weight",
        "backbone.layernorm.beta": "transformer.ln_f.bias",
    }
    for stored, original in same.items():
        np.testing.assert_array_equal(made[stored], arrays[original])
    for stored, original in (("blocks.0", "0"), ("top_query_layer", "2")):
        inner = made[f"backbone.{stored}.output.mapping.weight"]
        np.testing.assert_array_equal(inner, arrays[f"transformer.h.{original}.mlp.c_fc.weight"].T)
    assert not [name for name in made if name.startswith("backbone.blocks.2.")]


def test_chatglm_6b_has_other_names_for_embedding_and_norms():
    layer = "transformer.layers.1"
    shapes = {
        "transformer.word_embeddings.weight": (8, 4),
        "lm_head.weight": (8, 4),
        "transformer.final_layernorm.bias": (4,),
        f"{layer}.input_layernorm.weight": (4,),
        f"{layer}.attention.query_key_value.weight": (12, 4),
        f"{layer}.attention.rotary_emb.inv_freq": (1,),
    }
    names = to_mindformers(dialect("chatglm_6b"), shapes, Heads(1, 1, 4))
    arrays = numbered(names.shapes)
    made = stored_arrays(names, arrays)
    same = {
        "transformer.word_embeddings.embedding_table": "transformer.word_embeddings.weight",
        "lm_head.weight": "lm_head.weight",
        "transformer.final_layernorm.beta": "transformer.final_layernorm.bias",
        f"{layer}.input_layernorm.gamma": f"{layer}.input_layernorm.weight",
        f"{layer}.attention.query_key_value.weight": f"{layer}.attention.query_key_value.weight",
    }
    assert made.keys() == same.keys()
    for stored, original in same.items():
        np.testing.assert_array_equal(made[stored], arrays[original])


@pytest.mark.parametrize("options", [Options(), Options(mlp_concat=False), Options(qkv_concat=True)])
def test_chatglm(options):
    layer, heads = "transformer.encoder.layers.0", Heads(4, 2, 4)
    shapes = {
        f"{layer}.self_attention.query_key_value.weight": (32, 16),
        f"{layer}.self_attention.query_key_value.bias": (32,),
        f"{layer}.mlp.dense_h_to_4h.weight": (24, 16),
        "transformer.rotary_pos_emb.inv_freq": (4,),
    }
    names = to_mindformers(dialect("chatglm", options), shapes, heads)
    assert not [*side_faults("target", names)]
    arrays = numbered(names.shapes)
    made = stored_arrays(names, arrays)
    fused = arrays[f"{layer}.self_attention.query_key_value.weight"]
    if options.qkv_concat:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.query_key_value.weight"], fused)
    else:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.wk.weight"], fused[16:24])
    assert (f"{layer}.mlp.dense_left.weight" in made) is not options.mlp_concat
    assert "transformer.rotary_pos_emb.inv_freq" not in names.shapes


def test_unknown_names_are_refused_with_the_nearest():
    shapes = {"model.layers.7.self_attn.q_prj.weight": (4, 4), "model.norm.weight": (4,)}
    with pytest.raises(CheckpointError, match=r"q_prj.*did you mean.*layers\.7\.self_attn\.q_proj\.weight"):
        to_mindformers(dialect("llama"), shapes, Heads(1, 1, 4))


def test_a_part_of_a_fused_tensor_that_is_missing_is_named():
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.layers.0.self_attn.k_proj.weight": (4, 4),
    }
    with pytest.raises(CheckpointError, match=r"goes with model\.layers\.0\.self_attn\.v_proj\.weight"):
        to_mindformers(dialect("llama", FUSED), shapes, Heads(1, 1, 4))


def test_a_fused_tensor_that_does_not_divide_is_refused():
    shapes = {"model.layers.0.attention.w_qkv.weight": (15, 4)}
    with pytest.raises(CheckpointError, match=r"15 outputs cannot be divided as \[2, 1, 1\]"):
        to_huggingface(dialect("llama", FUSED), shapes, Heads(2, 1, 4))


def test_a_cut_inside_a_group_is_refused():
    shapes = {f"model.layers.0.self_attn.{which}_proj.weight": (6, 4) for which in "qkv"}
    with pytest.raises(CheckpointError, match="not whole groups of 4"):
        to_mindformers(dialect("llama", FUSED), shapes, Heads(2, 2, 4))


def test_parts_of_different_inputs_are_refused():
    shapes = {f"model.layers.0.self_attn.{which}_proj.weight": (4, 4) for which in "qk"}
    with pytest.raises(CheckpointError, match="same number of inputs"):
        to_mindformers(
            dialect("llama", FUSED),
            shapes | {"model.layers.0.self_attn.v_proj.weight": (4, 3)},
            Heads(1, 1, 4),
        )


def test_unknown_model_types_are_refused():
    with pytest.raises(ConfigError, match="'qwen3' are not known; allowed: chatglm, chatglm_6b, gpt2, llama"):
        dialect("qwen3")
