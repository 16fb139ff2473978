"""All strategies in one batch: each row gets what it gets alone, by its definition, and no block is lost."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from shadow_model import (
    STRATEGIES,
    VOCABULARY,
    drain,
    fingerprints,
    hidden_of,
    logits_of,
    make_engine,
    plain,
    request,
    run_all,
    settings,
)

from goodness_of_fit import draws
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput
from mindbatch.engine.settings import EngineSettings

PROCESSORS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": (1, 5)},
    {"bad_words_ids": ((3,), (2, 4))},
    {"min_new_tokens": 3, "eos_token_id": (0, 7)},
    {"stop": ("cb", "ee"), "logprobs": 2},
    {"frequency_penalty": 0.8, "logit_bias": {4: 1.5}},
    {"prompt_logprobs": 2},
]


@st.composite
def requests(draw: st.DrawFn, most: int = 9) -> list[Request]:
    """Rows of any strategies, some of whose prompts begin alike."""
    rows = []
    for number in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(list(STRATEGIES)))
        new = draw(st.integers(1, 9))
        ends = draw(st.sampled_from([(), (2,), (2, 9)]))
        given = {"max_new_tokens": new, "eos_token_id": ends, **draw(st.sampled_from(PROCESSORS))}
        if given.get("min_new_tokens", 0) > new:
            del given["min_new_tokens"]
        if name in ("beam", "group_beam", "sample_and_rank", "beam_sampling"):
            given["length_penalty"] = draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0]))
        if name in ("beam", "group_beam"):
            given["early_stopping"] = draw(st.sampled_from([False, True, "never"]))
        prompt = [1, 2, 3, 1, 2, 3, 1][: draw(st.integers(0, 7))]
        prompt += draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9))
        rows.append(request(f"{name}.{number}", prompt, **(STRATEGIES[name] | given)))
    return rows


def blocks_needed(rows: Sequence[Request], block_size: int) -> int:
    """Cache blocks of the largest request: with fewer it is refused."""
    width = [strategy_for(row.params).width(row.params) for row in rows]
    return max(
        wide * -(-row.params.max_total_tokens(len(row.prompt_token_ids), 40) // block_size)
        for wide, row in zip(width, rows, strict=True)
    )


def widest(rows: Sequence[Request]) -> int:
    """Sequences of the request with the most: with fewer states it is refused."""
    return max(strategy_for(row.params).width(row.params) for row in rows)


def most_tokens(row: Request) -> int:
    """Of the request's sequences in a step, with drafts, and replayed: with fewer it is refused."""
    return strategy_for(row.params).width(row.params) * (1 + 2 * row.params.num_draft_tokens)


def drafts(rows: Sequence[Request]) -> bool:
    """Whether a row decodes speculatively, for which keys and values must be kept."""
    return any(row.params.num_draft_tokens for row in rows)


@st.composite
def limits(draw: st.DrawFn, rows: Sequence[Request]) -> EngineSettings:
    """A cache that holds the largest request and little more, with states or without; steps of few tokens."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    return settings(
        batch_size=draw(st.sampled_from([1, 4, 9, 30])),
        block_size=block_size,
        num_blocks=blocks_needed(rows, block_size) + draw(st.integers(0, 12)),
        num_states=draw(st.sampled_from([0, widest(rows) + draw(st.integers(0, 6))])),
        max_batched_tokens=draw(st.integers(max(map(most_tokens, rows)), 40)),
        use_past=drafts(rows) or draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
    )


def run(engine: Engine, rows: Sequence[Request]) -> dict[str, RequestOutput]:
    """Results by key; what was streamed is what they hold."""
    for row in rows:
        engine.add(row)
    results, events = drain(engine)
    texts: dict[tuple[str, int], str] = defaultdict(str)
    tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
    logprobs: dict[tuple[str, int], list[dict[int, float]]] = defaultdict(list)
    reasons: dict[tuple[str, int], list[str | None]] = defaultdict(list)
    for event in events:
        texts[event.key, event.index] += event.text
        tokens[event.key, event.index] += event.token_ids
        logprobs[event.key, event.index] += event.logprobs or ()
        reasons[event.key, event.index].append(event.finish_reason)
    outputs = {(row.key, each.index): each for row in results.values() for each in row.outputs}
    assert {place: each.text for place, each in outputs.items()} == texts
    assert {place: each.token_ids for place, each in outputs.items()} == tokens
    assert {place: each.logprobs or [] for place, each in outputs.items()} == logprobs
    assert {place: each.finish_reason for place, each in outputs.items()} == {
        place: last for place, (*_, last) in reasons.items()
    }
    assert not any(reason for (*before, _) in reasons.values() for reason in before)
    return results


def alone(row: Request) -> RequestOutput:
    """The row by itself, without any pressure."""
    return run(make_engine(settings()), [row])[row.key]


@given(st.data(), requests())
@hypothesis_settings(max_examples=draws(10, thorough=500))
def test_each_row_gets_what_it_gets_alone(data: st.DataObject, rows: list[Request]) -> None:
    results = run(make_engine(data.draw(limits(rows))), rows)
    for row in rows:
        assert plain(results[row.key]) == plain(alone(row)), row


MORE: list[dict[str, Any]] = [{}, {"stop": ("cb", "h"), "logprobs": 2, "eos_token_id": (0,)}]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("use_past", [True, False])
@pytest.mark.parametrize("is_recurrent", [False, True])
@pytest.mark.parametrize("block_size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4))])
def test_every_strategy_survives_pre_emption(block_size: int, is_recurrent: bool, use_past: bool) -> None:
    """Deterministic companion of the property above: here pre-emption is certain."""
    rows = [
        request(f"{name}.{turn}", [turn, 1, 2, 1], max_new_tokens=10, **params, **MORE[turn])
        for turn in range(2)
        for name, params in STRATEGIES.items()
        if use_past or "lookup" not in name
    ]
    tight = settings(
        batch_size=30,
        block_size=block_size,
        num_blocks=blocks_needed(rows, block_size) + 4,
        num_states=is_recurrent * (widest(rows) + 1),
        use_past=use_past,
    )
    engine = make_engine(tight)
    results = run(engine, rows)
    assert engine.scheduler.num_preemptions > 3
    for row in rows:
        assert plain(results[row.key]) == plain(alone(row)), row


def test_dropping_requests_half_way_frees_their_blocks() -> None:
    rows = [
        request(name, [1, 2, 3, 1, 2], max_new_tokens=10, **params) for name, params in STRATEGIES.items()
    ]
    expected = [plain(alone(row)) for row in rows]
    for steps in (1, 4, 8):
        engine = make_engine(settings(batch_size=40))
        for row in rows:
            engine.add(row)
        for _ in range(steps):
            engine.step()
        engine.abort()
        assert engine.scheduler.blocks.num_free == engine.settings.num_blocks
        results = run(engine, rows)  # nothing of the first turn is left in a strategy
        assert [plain(results[row.key]) for row in rows] == expected


class Recomputed:
    """Sums over an output's tokens, from the model's logits alone."""

    def __init__(self, asked: Request, output: CompletionOutput) -> None:
        self.params, prompt = asked.params, asked.prompt_token_ids
        tokens = output.token_ids
        states = fingerprints([*prompt, *tokens])[len(prompt) - 1 : -1]
        raw = [log_softmax(logits_of(state).astype(np.float64)) for state in states]
        self.raw = sum(float(scores[token]) for scores, token in zip(raw, tokens, strict=True))
        names = {name for processors in PROCESSORS for name in processors}
        only = DecodingParams(**{name: getattr(self.params, name) for name in names})
        rows = [
            Row(only, prompt, list(tokens[:step]), only.eos_token_id or (), 0) for step in range(len(tokens))
        ]
        processed = [
            adjust(scores.astype(np.float32), row)[token]
            for scores, row, token in zip(raw, rows, tokens, strict=True)
        ]
        self.processed = float(sum(processed))
        self.length = len(tokens) ** self.params.length_penalty


def check_score(asked: Request, output: CompletionOutput) -> None:
    """The score of a hypothesis to 1e-4."""
    again, params = Recomputed(asked, output), asked.params
    assert output.cumulative_logprob == pytest.approx(again.raw, abs=1e-4)
    if output.score is None:
        assert params.num_beams == 1
        assert params.best_of is None
    elif params.best_of is not None:
        assert output.score == pytest.approx(again.raw / again.length, abs=1e-4)
    elif params.num_beam_groups > 1:
        # What the output alone does not tell is how often earlier groups had chosen its tokens. The penalty
        # for that comes before the one for repetition, which multiplies it.
        times = (again.processed - output.score * again.length) / params.diversity_penalty
        most = len(output.token_ids) * (params.num_beams - params.num_beams // params.num_beam_groups)
        assert -1e-3 < times < most * params.repetition_penalty + 1e-3
        if params.repetition_penalty == 1:
            assert times == pytest.approx(round(times), abs=1e-3)
    else:
        temperature = params.temperature if params.do_sample else 1.0
        expected = again.processed / temperature / again.length
        assert output.score == pytest.approx(expected, abs=1e-4, rel=1e-5)


@given(requests(most=4))
@hypothesis_settings(max_examples=draws(15, thorough=500))
def test_every_score_can_be_computed_again(rows: list[Request]) -> None:
    results = run(make_engine(settings(batch_size=16)), rows)
    for row in rows:
        outputs = results[row.key].outputs
        ranked = [output.score for output in outputs if output.score is not None]
        assert ranked == sorted(ranked, reverse=True)
        assert all(math.isfinite(score) for score in ranked)
        for output in outputs:
            check_score(row, output)


@pytest.mark.parametrize("name", STRATEGIES)
def test_there_are_as_many_outputs_as_asked_for(name: str) -> None:
    params = DecodingParams(**STRATEGIES[name])
    found = alone(request(name, [1, 2, 3], max_new_tokens=8, eos_token_id=(2, 5, 9), **STRATEGIES[name]))
    assert [output.index for output in found.outputs] == list(range(params.num_return_sequences))
    searches = params.num_beams > 1 or params.best_of is not None
    ranks = list(range(1, 1 + params.num_return_sequences)) if searches else [None] * len(found.outputs)
    assert [output.rank for output in found.outputs] == ranks


PROMPT = [3, 1, 4, 1, 5]
CONTRASTIVE: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4}
RANKED: dict[str, Any] = {"do_sample": True, "best_of": 6, "seed": 4}
BEAMS: dict[str, Any] = {"num_beams": 4}
SEARCHES = {
    "contrastive": CONTRASTIVE,
    "sample_and_rank": RANKED,
    "beam_search": BEAMS,
    "beam_sampling": {**BEAMS, "do_sample": True, "seed": 2},
    "group_beam_search": {**BEAMS, "num_beam_groups": 2, "diversity_penalty": 0.7},
}


def contrastive_tokens(prompt: list[int], count: int, alpha: float, k: int) -> list[int]:
    """What contrastive search must give, straight from its definition."""
    tokens = list(prompt)
    for _ in range(count):
        states = fingerprints(tokens)
        logits = logits_of(states[-1]).astype(np.float64)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        context = [unit(state) for state in states]
        scores = {}
        for candidate in np.argsort(-logits)[:k].tolist():
            hidden = unit(fingerprints([*tokens, candidate])[-1])
            likeness = max(float(hidden @ other) for other in context)
            scores[candidate] = (1 - alpha) * probabilities[candidate] - alpha * likeness
        tokens.append(max(scores, key=lambda candidate: scores[candidate]))
    return tokens[len(prompt) :]


def unit(state: int) -> Any:
    hidden = hidden_of(state).astype(np.float64)
    return hidden / np.linalg.norm(hidden)


def one(params: dict[str, Any], eos: tuple[int, ...] = (), **sizes: int) -> CompletionOutput:
    """The only output of PROMPT."""
    results = run_all(make_engine(settings(**sizes), eos), [request("row", PROMPT, **params)])
    [output] = results["row"].outputs
    return output


@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("k", [2, 4, VOCABULARY])
def test_contrastive_search_follows_its_definition(alpha: float, k: int) -> None:
    output = one({"penalty_alpha": alpha, "top_k": k, "max_new_tokens": 12}, batch_size=12)
    assert output.token_ids == contrastive_tokens(PROMPT, 12, alpha, k)
    assert (output.finish_reason, output.score, output.rank) == ("length", None, None)


def test_contrastive_search_knows_a_prompt_that_came_in_chunks_and_from_the_cache() -> None:
    engine = make_engine(settings(max_batched_tokens=4, block_size=2))
    long = [*PROMPT, 9, 2, 6, 5, 3]
    for key in "ab":  # the second finds the blocks of the first, and may not use them
        results = run_all(engine, [request(key, long, **CONTRASTIVE, max_new_tokens=8)])
        assert results[key].outputs[0].token_ids == contrastive_tokens(long, 8, 0.6, 4)


def test_ranked_samples_are_the_likeliest_of_all() -> None:
    both = {"do_sample": True, "seed": 4, "max_new_tokens": 9}
    ranked, free = (
        run_all(make_engine(settings(), eos=(0,)), [request("row", PROMPT, **both, **more)])["row"].outputs
        for more in ({"best_of": 6, "num_return_sequences": 3}, {"num_return_sequences": 6})
    )
    free.sort(key=lambda output: -output.cumulative_logprob / len(output.token_ids))
    assert [output.token_ids for output in ranked] == [output.token_ids for output in free[:3]]
    assert [output.rank for output in ranked] == [1, 2, 3]
    for output in ranked:
        assert output.score == pytest.approx(output.cumulative_logprob / len(output.token_ids))
    assert len({len(output.token_ids) for output in free}) > 1


def test_contrastive_search_streams_each_token_once_it_is_taken() -> None:
    engine = make_engine(settings())
    engine.add(request("row", PROMPT, **CONTRASTIVE, max_new_tokens=6))
    _, events = drain(engine)
    assert [len(event.token_ids) for event in events] == [1] * 6
