"""Plans between files of any names: proved, right element by element, and each wrong copy is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_arrays import copied, numbered, same, scattered

from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import as_mindformers, to_mindformers
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.plan import TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.regions import RankFiles, as_placed
from mindbatch.io.errors import CheckpointError
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from reshard_models import LLAMA, MODELS

FUSED, JOINED = Options(qkv_concat=True), Options(qkv_concat=True, grouped=False)
Kind = Options | None


def ranks(config: dict[str, Any], ways: int, stages: int, options: Kind) -> RankFiles:
    """Ranks with MindFormers' names, or Hugging Face's for None."""
    arch = describe(config)
    placed = placements(tensor_specs(arch), ways, stages)
    if options is None:
        return as_placed(placed, ways * stages)
    rules = dialect(arch.model_type, replace(options, num_layers=arch.num_layers))
    return as_mindformers(rules, heads_of(arch), placed, ways * stages)


def case(model: str, source: Kind, target: Kind) -> tuple[list[TensorPlan], RankFiles, RankFiles]:
    one, other = ranks(MODELS[model], 2, 1, source), ranks(MODELS[model], 1, 2, target)
    return plan_copies(one, other), one, other


CASES = [
    case("llama", None, FUSED),
    case("llama", FUSED, None),
    case("llama", FUSED, Options()),
    case("gpt2", None, Options()),
    case("gpt2", Options(), None),
    case("pangu_alpha", None, Options()),
    case("pangu_alpha", Options(), None),
]


def place(plans: list[TensorPlan], name: str) -> int:
    return next(index for index, plan in enumerate(plans) if plan.name.endswith(name))


def moved_by_one(plan: TensorPlan, side: str) -> TensorPlan:
    """One row further, where there is another row, or one back."""
    copy = plan.copies[-1]
    (start, stop), *columns = getattr(copy, side)
    by = 1 if start == 0 else -1
    return replace(
        plan, copies=(*plan.copies[:-1], copy._replace(**{side: ((start + by, stop + by), *columns)}))
    )


def elsewhere(plan: TensorPlan) -> TensorPlan:
    copy = plan.copies[0]
    return replace(plan, copies=(copy._replace(source_rank=1 - copy.source_rank), *plan.copies[1:]))


def renamed(plan: TensorPlan) -> TensorPlan:
    copy = plan.copies[0]
    layer = ".0." if ".1." in copy.source_name else ".1."
    name = copy.source_name.replace(".0.", ".x.").replace(".1.", ".x.").replace(".x.", layer)
    return replace(plan, copies=(copy._replace(source_name=name), *plan.copies[1:]))


def turned(plan: TensorPlan) -> TensorPlan:
    copy = plan.copies[0]
    wrong = copy._replace(
        transposed=not copy.transposed, target=((0, 16), (0, 16)), source=((0, 16), (0, 16))
    )
    return replace(plan, copies=(wrong, *plan.copies[1:]))


MUTATIONS: list[tuple[Callable[[TensorPlan], TensorPlan], str]] = [
    (lambda plan: moved_by_one(plan, "source"), "another element belongs|outside|no such"),
    (lambda plan: moved_by_one(plan, "target"), "another element belongs|outside|written twice"),
    (elsewhere, "another element belongs|no such tensor"),
    (renamed, "another element belongs|no such tensor"),
    (turned, "another element belongs|different sizes|outside"),
]
NAMES = [
    ("w_qkv.weight", "w_gate_hidden.weight", "w2.weight"),
    ("k_proj.weight", "gate_proj.weight", "lm_head.weight"),
    ("wq.weight", "w3.weight", "w2.weight"),
    ("dense2.weight", "dense3.bias", "mapping.weight"),
    ("c_attn.weight", "c_attn.bias", "c_proj.weight"),
    (
        "top_query_layer.attention.dense1.weight",
        "top_query_layer.output.mapping.weight",
        "blocks.1.attention.dense2.bias",
    ),
    ("h.2.attn.q_proj.weight", "h.2.mlp.c_proj.weight", "h.1.attn.c_proj.weight"),
]


@pytest.mark.parametrize(("mutation", "message"), MUTATIONS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_wrong_copy_is_found(
    number: int, mutation: Callable[[TensorPlan], TensorPlan], message: str
) -> None:
    plans, source, target = CASES[number]
    prove(plans, source, target)
    for name in NAMES[number]:
        index = place(plans, name)
        wrong = mutation(plans[index])
        if wrong == plans[index] or (mutation is turned and len(plans[index].view) < 2):
            continue
        with pytest.raises(CheckpointError, match=message):
            prove([*plans[:index], wrong, *plans[index + 1 :]], source, target)


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
        ways = data.draw(st.sampled_from([each for each in allowed if not fused or each <= kv_heads]))
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
    for rank, shards in enumerate(scattered(as_placed(placed, 4), arrays)):
        shapes = {name: array.shape for name, array in shards.items()}
        assert same([found[rank]], scattered(to_mindformers(rules, shapes, heads), shards))
