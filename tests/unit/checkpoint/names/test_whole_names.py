"""Names of MindFormers: what each of its tensors is made of, and the way back."""

from dataclasses import replace

import numpy as np
import pytest
from placed_arrays import numbered, scattered

from mindbatch.checkpoint.names.dialect import Heads, Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import to_huggingface, to_mindformers
from mindbatch.checkpoint.placement.proof import side_faults
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.registry import describe
from reshard_models import MODELS, source_shapes_of

PLAIN, FUSED = Options(), Options(qkv_concat=True)
JOINED = Options(qkv_concat=True, grouped=False)
CASES = [
    *((model, PLAIN) for model in MODELS),
    *((model, options) for model in ("llama", "qwen2") for options in (FUSED, JOINED)),
    ("chatglm", FUSED),
    ("chatglm", Options(mlp_concat=False)),
]
LLAMA = "model.layers.1"


def rules_and_heads(model, options):
    arch = describe(MODELS[model], to_be_run=False)
    return dialect(arch.model_type, replace(options, num_layers=arch.num_layers)), heads_of(arch)


def named(model, options=PLAIN):
    """The tensors of a model under Hugging Face's names, and those of MindFormers that are made of them."""
    rules, heads = rules_and_heads(model, options)
    arrays = numbered(source_shapes_of(MODELS[model]))
    [made] = scattered(to_mindformers(rules, source_shapes_of(MODELS[model]), heads), arrays)
    return arrays, made


@pytest.mark.parametrize(("model", "options"), CASES)
def test_there_and_back_is_the_same(model, options):
    rules, heads = rules_and_heads(model, options)
    there = to_mindformers(rules, source_shapes_of(MODELS[model]), heads)
    assert there.shapes == source_shapes_of(MODELS[model])
    assert not [*side_faults("target", there)]
    assert to_huggingface(rules, there.stored_shapes(0), heads) == there


def test_llama_names():
    _, made = named("llama")
    assert set(made) == {
        "model.tok_embeddings.embedding_weight", "model.norm_out.weight", "lm_head.weight",
        *(
            f"model.layers.{layer}.{name}.weight" for layer in range(3) for name in (
                "attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
                "feed_forward.w2", "feed_forward.w3", "attention_norm", "ffn_norm",
            )
        ),
    }  # fmt: skip
    assert dialect("mistral") == dialect("llama")


@pytest.mark.parametrize("end", ["weight", "bias"])
def test_grouped_queries_keys_and_values(end):
    """Two groups of four query heads and one key/value head, of four outputs each."""
    arrays, made = named("qwen2", FUSED)
    query, key, value = (arrays[f"{LLAMA}.self_attn.{which}_proj.{end}"] for which in "qkv")
    groups = [query[:16], key[:4], value[:4], query[16:], key[4:], value[4:]]
    np.testing.assert_array_equal(made[f"{LLAMA}.attention.w_qkv.{end}"], np.concatenate(groups))


def test_rows_of_gate_and_up_alternate():
    arrays, made = named("llama", FUSED)
    rows = made[f"{LLAMA}.feed_forward.w_gate_hidden.weight"]
    np.testing.assert_array_equal(rows[0::2], arrays[f"{LLAMA}.mlp.gate_proj.weight"])
    np.testing.assert_array_equal(rows[1::2], arrays[f"{LLAMA}.mlp.up_proj.weight"])


def test_joined_sections_follow_each_other():
    arrays, made = named("llama", JOINED)
    expected = np.concatenate([arrays[f"{LLAMA}.self_attn.{which}_proj.weight"] for which in "qkv"])
    np.testing.assert_array_equal(made[f"{LLAMA}.attention.w_qkv.weight"], expected)


def test_gpt2_cuts_and_transposes_its_fused_matrix():
    arrays, made = named("gpt2")
    fused, bias = (arrays[f"transformer.h.1.attn.c_attn.{end}"] for end in ("weight", "bias"))
    for number in range(3):
        part = slice(32 * number, 32 * number + 32)
        dense = f"backbone.blocks.1.attention.dense{number + 1}"
        np.testing.assert_array_equal(made[f"{dense}.weight"], fused[:, part].T)
        np.testing.assert_array_equal(made[f"{dense}.bias"], bias[part])


GPT2, PANGU, GLM = "backbone.blocks.1", "backbone.top_query_layer", "transformer.layers.1"
SAME = {
    "gpt2": {
        "backbone.embedding.position_embedding.embedding_table": "transformer.wpe.weight",
        f"{GPT2}.attention.projection.weight": "transformer.h.1.attn.c_proj.weight",
        f"{GPT2}.output.mapping.weight": "transformer.h.1.mlp.c_fc.weight",
        f"{GPT2}.output.projection.bias": "transformer.h.1.mlp.c_proj.bias",
        f"{GPT2}.layernorm1.gamma": "transformer.h.1.ln_1.weight",
        f"{GPT2}.layernorm2.beta": "transformer.h.1.ln_2.bias",
    },
    "pangu_alpha": {
        "backbone.embedding.word_embedding.embedding_table": "transformer.wte.weight",
        "backbone.top_query_embedding.embedding_table": "transformer.wqe.weight",
        f"{GPT2}.attention.dense3.weight": "transformer.h.1.attn.v_proj.weight",
        f"{PANGU}.attention.dense1.bias": "transformer.h.2.attn.q_proj.bias",
        f"{PANGU}.layernorm2.gamma": "transformer.h.2.ln_2.weight",
        "backbone.layernorm.beta": "transformer.ln_f.bias",
    },
    "chatglm_6b": {
        "transformer.word_embeddings.embedding_table": "transformer.word_embeddings.weight",
        "lm_head.weight": "lm_head.weight",
        "transformer.final_layernorm.beta": "transformer.final_layernorm.bias",
        f"{GLM}.input_layernorm.gamma": f"{GLM}.input_layernorm.weight",
        f"{GLM}.attention.query_key_value.weight": f"{GLM}.attention.query_key_value.weight",
    },
}


@pytest.mark.parametrize("model", SAME)
def test_tensors_that_only_have_other_names(model):
    arrays, made = named(model)
    for stored, original in SAME[model].items():
        np.testing.assert_array_equal(made[stored], arrays[original], err_msg=stored)


def test_the_last_layer_of_pangu_alpha_stands_apart():
    arrays, made = named("pangu_alpha")
    for stored, original in (("blocks.0", "0"), ("top_query_layer", "2")):
        inner = made[f"backbone.{stored}.output.mapping.weight"]
        np.testing.assert_array_equal(inner, arrays[f"transformer.h.{original}.mlp.c_fc.weight"].T)
    assert not [name for name in made if name.startswith("backbone.blocks.2.")]


@pytest.mark.parametrize("options", [PLAIN, Options(mlp_concat=False), FUSED])
def test_chatglm(options):
    arrays, made = named("chatglm", options)
    layer = "transformer.encoder.layers.0"
    fused = arrays[f"{layer}.self_attention.query_key_value.weight"]
    if options.qkv_concat:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.query_key_value.weight"], fused)
    else:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.wk.weight"], fused[32:48])
    assert (f"{layer}.mlp.dense_left.weight" in made) is not options.mlp_concat


@pytest.mark.parametrize(
    ("model", "unused"),
    [
        ("chatglm", "transformer.rotary_pos_emb.inv_freq"),
        ("chatglm_6b", "transformer.layers.1.attention.rotary_emb.inv_freq"),
    ],
)
def test_what_no_model_of_mindformers_has_is_left_out(model, unused):
    rules, heads = rules_and_heads(model, PLAIN)
    shapes = source_shapes_of(MODELS[model])
    assert to_mindformers(rules, {**shapes, unused: (4,)}, heads).shapes == shapes


Q, K, V = (f"model.layers.0.self_attn.{which}_proj.weight" for which in "qkv")


@pytest.mark.parametrize(
    ("options", "shapes", "heads", "message"),
    [
        (
            PLAIN,
            {"model.layers.7.self_attn.q_prj.weight": (4, 4), "model.norm.weight": (4,)},
            Heads(1, 1, 4),
            r"q_prj.*did you mean.*layers\.7\.self_attn\.q_proj\.weight",
        ),
        (FUSED, {Q: (4, 4), K: (4, 4)}, Heads(1, 1, 4), rf"goes with {V}"),
        (FUSED, {Q: (6, 4), K: (6, 4), V: (6, 4)}, Heads(2, 2, 4), "not whole groups of 4"),
        (FUSED, {Q: (4, 4), K: (4, 4), V: (4, 3)}, Heads(1, 1, 4), "same number of inputs"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(options, shapes, heads, message):
    with pytest.raises(CheckpointError, match=message):
        to_mindformers(dialect("llama", options), shapes, heads)


def test_a_fused_tensor_that_does_not_divide_is_refused():
    shapes = {"model.layers.0.attention.w_qkv.weight": (15, 4)}
    with pytest.raises(CheckpointError, match=r"15 outputs cannot be divided as \[2, 1, 1\]"):
        to_huggingface(dialect("llama", FUSED), shapes, Heads(2, 1, 4))


def test_unknown_model_types_are_refused():
    with pytest.raises(ConfigError, match="'qwen3' are not known; allowed: chatglm, chatglm_6b, gpt2, llama"):
        dialect("qwen3")
