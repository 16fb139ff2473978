"""Names of MindFormers, and plans between files of any names: right, proved, and each wrong copy is found."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_arrays import copied, numbered, same, scattered

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.names.dialect import Heads, Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import as_mindformers, to_huggingface, to_mindformers
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove, side_errors
from mindbatch.checkpoint.placement.regions import RankFiles, Region, as_rank_files
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe, tensor_specs
from reshard_models import LLAMA, MODELS, source_shapes_of

PLAIN, FUSED = Options(), Options(qkv_concat=True)
JOINED = Options(qkv_concat=True, grouped=False)
NAMED = [
    *((model, PLAIN) for model in MODELS),
    *((model, options) for model in ("llama", "qwen2") for options in (FUSED, JOINED)),
    ("chatglm", FUSED),
]
LAYER = "model.layers.1"


def rules_and_heads(model, options):
    arch = describe(MODELS[model], to_be_run=False)
    return dialect(arch.model_type, replace(options, num_layers=arch.num_layers)), heads_of(arch)


def named(model, options=PLAIN):
    """The tensors of a model under Hugging Face's names, and those of MindFormers that are made of them."""
    rules, heads = rules_and_heads(model, options)
    arrays = numbered(source_shapes_of(MODELS[model]))
    [made] = scattered(to_mindformers(rules, source_shapes_of(MODELS[model]), heads), arrays)
    return arrays, made


@pytest.mark.parametrize(("model", "options"), NAMED)
def test_there_and_back_is_the_same(model, options):
    rules, heads = rules_and_heads(model, options)
    there = to_mindformers(rules, source_shapes_of(MODELS[model]), heads)
    assert there.shapes == source_shapes_of(MODELS[model])
    assert not [*side_errors("target", there)]
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


def test_rows_of_gate_and_up_alternate():
    arrays, made = named("llama", FUSED)
    rows = made[f"{LAYER}.feed_forward.w_gate_hidden.weight"]
    np.testing.assert_array_equal(rows[0::2], arrays[f"{LAYER}.mlp.gate_proj.weight"])
    np.testing.assert_array_equal(rows[1::2], arrays[f"{LAYER}.mlp.up_proj.weight"])


def test_joined_sections_follow_each_other():
    arrays, made = named("llama", JOINED)
    expected = np.concatenate([arrays[f"{LAYER}.self_attn.{which}_proj.weight"] for which in "qkv"])
    np.testing.assert_array_equal(made[f"{LAYER}.attention.w_qkv.weight"], expected)


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


@pytest.mark.parametrize("options", [PLAIN, FUSED])
def test_chatglm(options):
    arrays, made = named("chatglm", options)
    layer = "transformer.encoder.layers.0"
    fused = arrays[f"{layer}.self_attention.query_key_value.weight"]
    if options.qkv_concat:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.query_key_value.weight"], fused)
    else:
        np.testing.assert_array_equal(made[f"{layer}.self_attention.wk.weight"], fused[32:48])


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


Kind = Options | None


def ranks(config: dict[str, Any], ways: int, stages: int, options: Kind) -> RankFiles:
    """Ranks with MindFormers' names, or Hugging Face's for None."""
    arch = describe(config)
    placed = placements(tensor_specs(arch), ways, stages)
    if options is None:
        return as_rank_files(placed, ways * stages)
    rules = dialect(arch.model_type, replace(options, num_layers=arch.num_layers))
    return as_mindformers(rules, heads_of(arch), placed, ways * stages)


def case(model: str, source: Kind, target: Kind) -> tuple[list[TensorPlan], RankFiles, RankFiles]:
    one, other = ranks(MODELS[model], 2, 1, source), ranks(MODELS[model], 1, 2, target)
    return plan_copies(one, other), one, other


CHANGES = 100
CASES = [
    case("llama", None, None),
    case("gpt2", None, None),
    case("llama", None, FUSED),
    case("llama", FUSED, None),
    case("llama", FUSED, Options()),
    case("gpt2", None, Options()),
    case("gpt2", Options(), None),
    case("pangu_alpha", None, Options()),
    case("pangu_alpha", Options(), None),
]


def changed(copy: Copy, source: RankFiles, chance: random.Random) -> Copy:
    """Another rank, tensor or orientation, or one end or both moved by one, of one region or of both."""
    if chance.random() < 0.1:
        return copy._replace(source_rank=1 - copy.source_rank)
    if chance.random() < 0.2:
        return copy._replace(source_name=chance.choice([*source.ranks[copy.source_rank]]))
    if chance.random() < 0.1:
        return copy._replace(transposed=not copy.transposed)
    dimension, by = chance.randrange(len(copy.source)), chance.choice([-1, 1])
    starts, stops = chance.choice([(by, by), (by, 0), (0, by)])

    def shifted(region: Region) -> Region:
        start, stop = region[dimension]
        return (*region[:dimension], (start + starts, stop + stops), *region[dimension + 1 :])

    sides = chance.choice([["source"], ["target"], ["source", "target"]])
    return copy._replace(**{side: shifted(getattr(copy, side)) for side in sides})


@pytest.mark.parametrize("number", range(len(CASES)))
def test_any_single_change_of_a_plan_is_found_unless_it_changes_nothing(number: int) -> None:
    """The proof fails just when the elements come out different."""
    plans, source, target = CASES[number]
    prove(plans, source, target)
    arrays = numbered(source.shapes)
    expected, stored = scattered(target, arrays), scattered(source, arrays)
    chance, num_refused = random.Random(number), 0
    for _ in range(CHANGES):
        index = chance.randrange(len(plans))
        copies = [*plans[index].copies]
        place = chance.randrange(len(copies))
        copies[place] = changed(copies[place], source, chance)
        wrong = [*plans[:index], replace(plans[index], copies=tuple(copies)), *plans[index + 1 :]]
        try:
            prove(wrong, source, target)
        except CheckpointError:
            num_refused += 1
        else:
            assert same(copied(wrong, source, stored), expected)
    assert num_refused > 0.7 * CHANGES


@given(st.data())
def test_every_plan_that_is_made_is_proved(data: st.DataObject) -> None:
    """Whatever the model, the cuts and the names of both sides; and its copies make the right files."""
    kv_heads, group, head_dim = (data.draw(st.integers(1, 4)) for _ in range(3))
    heads = kv_heads * group
    config = {
        **LLAMA,
        "model_type": data.draw(st.sampled_from(["llama", "qwen2"])),
        "tie_word_embeddings": data.draw(st.booleans()),
        "vocab_size": data.draw(st.integers(1, 13)),
        "hidden_size": heads * head_dim * 2,
        "intermediate_size": heads * data.draw(st.integers(1, 3)),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    allowed = allowed_model_parallel(tensor_specs(describe(config)))
    sides = []
    for _ in range(2):
        options = data.draw(st.sampled_from([None, Options(), FUSED, JOINED]))
        fused = options is not None and options.qkv_concat
        ways = data.draw(st.sampled_from([size for size in allowed if not fused or size <= kv_heads]))
        sides.append(ranks(config, ways, data.draw(st.integers(1, 2)), options))
    source, target = sides
    plans = plan_copies(source, target)
    prove(plans, source, target)
    arrays = numbered(source_shapes(tensor_specs(describe(config))))
    assert same(copied(plans, source, scattered(source, arrays)), scattered(target, arrays))


@pytest.mark.parametrize(
    ("model", "options"), [("llama", Options()), ("llama", FUSED), ("llama", JOINED), ("gpt2", Options())]
)
def test_files_are_what_their_names_make_of_the_shards(model: str, options: Options) -> None:
    """Cut, then named rank by rank, with padding."""
    arch = describe(MODELS[model])
    specs = tensor_specs(arch)
    arrays = numbered(source_shapes(specs))
    placed, heads = placements(specs, 2, 2), heads_of(arch)
    rules = dialect(arch.model_type, options)
    found = scattered(as_mindformers(rules, heads, placed, 4), arrays)
    for rank, shards in enumerate(scattered(as_rank_files(placed, 4), arrays)):
        shapes = {name: array.shape for name, array in shards.items()}
        assert same([found[rank]], scattered(to_mindformers(rules, shapes, heads), shards))
