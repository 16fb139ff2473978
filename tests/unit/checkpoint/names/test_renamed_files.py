"""Plans between files of any names: proved, right element by element, and each wrong copy is found."""

import random
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
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.regions import RankFiles, Region, as_placed
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
    expected, ranks = scattered(target, arrays), scattered(source, arrays)
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
            assert same(copied(wrong, source, ranks), expected)
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
