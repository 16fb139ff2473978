"""Whatever parameters rows have, each ends: with outputs, or with an error of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadow_model import VOCABULARY, Letters, ShadowOutput, ShadowRunner, drain, settings

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.grammar_constraint import GrammarConstraint
from mindbatch.engine.assistant import Assistant
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.engine.step import Step
from mindbatch.io.errors import ConfigError, PromptError

STRATEGIES: list[dict[str, Any]] = [
    {},
    {"do_sample": True},
    {"do_sample": True, "num_return_sequences": 3},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 2, "do_sample": True},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"best_of": 3, "do_sample": True},
    {"num_assistant_tokens": 2},
    {"num_assistant_tokens": 2, "do_sample": True},
    {"prompt_lookup_num_tokens": 2},
    {"prompt_lookup_num_tokens": 2, "do_sample": True},
    {"pooling": "mean"},
]
TOKENS = range(VOCABULARY)
VALUES: dict[str, Sequence[Any]] = {
    "temperature": (0.000001, 0.3, 5.0, 1000000.0, 0.0),
    "top_k": (1, 2, VOCABULARY - 1, VOCABULARY, 99),
    "top_p": (0.000001, 0.3, 0.9, 0.999999),
    "min_p": (0.01, 0.5, 1.0),
    "top_h": (0.000001, 0.3, 0.9),
    "top_n_sigma": (0.000001, 1.0, 1000000.0),
    "typical_p": (0.000001, 0.3, 0.99),
    "epsilon_cutoff": (0.000001, 0.1, 0.99),
    "eta_cutoff": (0.000001, 0.1, 0.99),
    "seed": (1, 2**64 - 1),
    "length_penalty": (-20.0, 0.0, 2.0, 20.0),
    "early_stopping": (True, "never"),
    "max_matching_ngram_size": (1, 50),
    "repetition_penalty": (0.000001, 1.3, 1000000.0),
    "encoder_repetition_penalty": (0.000001, 1.3, 1000000.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "no_repeat_ngram_size": (1, 2, 50),
    "encoder_no_repeat_ngram_size": (1, 2, 50),
    "bad_words_ids": ([[0], [1, 2]], [[token] for token in TOKENS]),
    "sequence_bias": ([[[1], 1000000.0], [[2, 3], -1000000.0]],),
    "logit_bias": ({0: 100.0, 1: -100.0},),
    "suppress_tokens": ([0], list(TOKENS[1:]), list(TOKENS)),
    "begin_suppress_tokens": ([0, 1, 2], list(TOKENS)),
    "forced_bos_token_id": (0, 2),
    "forced_eos_token_id": ([0], [1, 2]),
    "exponential_decay_length_penalty": ([0, 1.5], [2, 1000000.0], [1, 0.000001]),
    "renormalize_logits": (True,),
    "prefix_allowed_tokens_fn": (
        lambda key, tokens: TOKENS[: 1 + len(tokens) % 3],
        lambda key, tokens: [] if len(tokens) > 6 else [0, 1],
        lambda key, tokens: TOKENS[len(tokens)],
    ),
    "regex": ("x",),
    "json_schema": ("{}",),
    "reasoning_tags": (["<a>", "</a>"],),
    "max_length": (4, 9),
    "max_new_tokens": (1, 2, 7),
    "min_length": (1, 6),
    "min_new_tokens": (1, 3),
    "stop": (["b"], ["ab", "bcd"]),
    "eos_token_id": ([], [0], [0, 1, 1], list(TOKENS[:6]), list(TOKENS)),
    "num_return_sequences": (2, 3),
    "logprobs": (0, 3, 100),
    "prompt_logprobs": (0, 3, 100),
    "dimensions": (1, 3, 99),
    "prompt_logprobs_start": (1, 2, 99),
    "skip_special_tokens": (False,),
}
SETTLED = {name for params in STRATEGIES for name in params}


class Narrow(ShadowRunner):
    """The shadow model with its first `size` tokens only."""

    def __init__(self, size: int) -> None:
        super().__init__(settings(num_blocks=2000))
        self.vocab_size = size

    def run(self, step: Step) -> NarrowOutput:
        return NarrowOutput(super().run(step).states, self.vocab_size)


class NarrowOutput(ShadowOutput):
    def __init__(self, states: list[int], size: int) -> None:
        super().__init__(states)
        self.size = size

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return super().logits(tokens)[:, : self.size].copy()


class Alternating:
    """A constraint: even tokens and odd ones in turn, five of them; 1 where there is none."""

    error = None

    def __init__(self, size: int, length: int = 0) -> None:
        self.size, self.length = size, length

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        mask = np.arange(self.size) % 2 == self.length % 2
        mask[1:2] |= not mask.any()
        mask[[token for token in eos_token_ids if token < self.size]] = self.length > 2
        return mask

    @property
    def is_complete(self) -> bool:
        return self.length >= 5

    def advance(self, token_id: int) -> None:
        self.length += 1

    def fork(self) -> Alternating:
        return Alternating(self.size, self.length)


def make_engine(size: int, model_ends: tuple[int, ...]) -> Engine:
    def constraint(params: DecodingParams, prompt: tuple[int, ...]) -> GrammarConstraint | None:
        return Alternating(size) if params.regex or params.json_schema else None

    limits = settings(num_blocks=2000, batch_size=16)
    assistant = Assistant(Narrow(size), limits)
    return Engine(Narrow(size), limits, Letters, model_ends, constraint, assistant)


@st.composite
def parameters(draw: st.DrawFn) -> DecodingParams:
    """A strategy with any others that go with it and with each other."""
    given = {"max_new_tokens": 6, **draw(st.sampled_from(STRATEGIES))}
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=6, unique=True)):
        value = draw(st.sampled_from(VALUES[name]))
        try:
            DecodingParams(**given | {name: value})
        except ConfigError:
            continue
        given[name] = value
    return DecodingParams(**given)


def run(engine: Engine, requests: Sequence[Request]) -> dict[str, tuple[Any, ...]]:
    """What each row came to; one that is refused says why."""
    found: dict[str, tuple[Any, ...]] = {}
    for request in requests:
        try:
            engine.add(request)
        except PromptError as error:
            found[request.key] = (str(error),)
    for key, result in drain(engine)[0].items():
        outputs = [(each.token_ids, each.score, each.finish_reason, each.logprobs) for each in result.outputs]
        found[key] = (result.error, result.prompt_logprobs, outputs)
    return found


def test_every_parameter_is_drawn() -> None:
    assert {field.name for field in fields(DecodingParams)} == SETTLED | set(VALUES)


@given(
    st.sampled_from([1, 2, 3, 5, VOCABULARY]),
    st.sampled_from([(), (0,), (1, 2, 50), (-1,)]),
    st.lists(parameters(), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_row_ends_as_it_does_alone(
    size: int, model_ends: tuple[int, ...], params: list[DecodingParams], source: Any
) -> None:
    rows = [
        Request(str(number), tuple(source.randrange(size) for _ in range(source.randrange(1, 6))), one)
        for number, one in enumerate(params)
    ]
    found = run(make_engine(size, model_ends), rows)
    for row in rows:
        came = found[row.key]
        assert (came[0] is None) == bool(came[-1:] and isinstance(came[-1], list) and came[-1]), row
        assert "unforeseen" not in str(came[0])
        assert run(make_engine(size, model_ends), [row])[row.key] == came, row


def test_end_tokens_of_the_model_outside_its_vocabulary_end_nothing() -> None:
    """-1, which configurations have for "none", is not the last token, and what a done group is padded with
    is a token."""
    params = [
        DecodingParams(min_new_tokens=3, max_new_tokens=3, suppress_tokens=tuple(TOKENS[:-1])),
        DecodingParams(
            num_beams=4, num_beam_groups=2, diversity_penalty=0.7, stop=("a", "b"), do_sample=False
        ),
    ]
    rows = [Request(str(number), (1, 2), one) for number, one in enumerate(params)]
    found = run(make_engine(VOCABULARY, (50, -1)), rows)
    assert found["0"][-1][0][0] == [VOCABULARY - 1] * 3
    assert found["1"][0] is None
