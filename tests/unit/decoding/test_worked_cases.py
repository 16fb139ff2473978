"""Every strategy on models of a few probabilities, with results worked out by hand."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from shadow_model import request, run_all, settings

from mindbatch.engine.engine import Engine
from mindbatch.engine.request import CompletionOutput
from mindbatch.engine.step import Step, StepOutput

LEAST = 1e-9
"""What is left of a distribution where the given probabilities leave nothing."""


class ScriptedOutput(StepOutput):
    """Logits and hidden states that were written down for prefixes."""

    def __init__(self, model: "Scripted", prefixes: list[str]) -> None:
        self.model, self.prefixes = model, prefixes

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self.model.logits(self.prefixes[token]) for token in tokens])

    def hidden(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.array([self.model.states[self.prefixes[token]] for token in tokens], np.float32)


class Scripted:
    """A model whose tokens are letters: `words` are all of them, and "P" is the usual prompt.

    table: prefix -> {letter: probability}; what is left over goes to the other letters in equal parts, and a
        prefix that is not there is followed by any letter alike.
    states: prefix -> hidden state.
    """

    def __init__(
        self,
        words: str,
        table: Mapping[str, Mapping[str, float]],
        states: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.words, self.table, self.states = words, table, states or {}
        self.vocab_size = len(words)

    def run(self, step: Step) -> ScriptedOutput:
        prefixes = [
            self.text(tokens.sequence.tokens(0, place + 1))
            for tokens in step.scheduled
            for place in range(tokens.start, tokens.stop)
        ]
        return ScriptedOutput(self, prefixes)

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[token] for token in tokens)

    def logits(self, prefix: str) -> NDArray[np.float32]:
        given = self.table.get(prefix, {})
        others = max(LEAST, (1 - sum(given.values())) / max(1, len(self.words) - len(given)))
        # A constant that is the same for all of a row's logits changes none of its probabilities.
        return np.array([7 + math.log(given.get(word, others)) for word in self.words], np.float32)

    def decode(self, *, ends: str = "", **params: object) -> list[CompletionOutput]:
        """What follows "P"."""
        engine = Engine(self, settings())
        asked = request(
            "row", [self.words.index("P")], eos_token_id=[self.words.index(end) for end in ends], **params
        )
        return run_all(engine, [asked])["row"].outputs

    def ranked(self, **params: object) -> list[tuple[str, float]]:
        """Texts with their scores, the best first."""
        found = self.decode(**params)  # type: ignore[arg-type]
        assert [output.rank for output in found] == list(range(1, len(found) + 1))
        return [(self.text(output.token_ids), output.score or 0.0) for output in found]


def near(expected: list[tuple[str, float]]) -> list[tuple[str, object]]:
    return [(text, pytest.approx(score, abs=1e-5)) for text, score in expected]


# "P" is "The"; n(ice), d(og), c(ar), w(oman), h(ouse), g(uy), h(A)s, a(nd), r(uns), (d)i(rives)...
THE = Scripted(
    "PndcwhgAarit",
    {
        "P": {"n": 0.5, "d": 0.4, "c": 0.1},
        "Pn": {"w": 0.4, "h": 0.3, "g": 0.3},
        "Pd": {"A": 0.9, "a": 0.05, "r": 0.05},
        "Pc": {"i": 0.6, "t": 0.4},
    },
)


def test_greedy_takes_the_nice_woman() -> None:
    [found] = THE.decode(max_new_tokens=2)
    assert THE.text(found.token_ids) == "nw"
    assert found.cumulative_logprob == pytest.approx(math.log(0.20), abs=1e-5)
    assert found.score is None


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_two_beams_find_the_dog_that_has(penalty: float) -> None:
    found = THE.ranked(max_new_tokens=2, num_beams=2, num_return_sequences=2, length_penalty=penalty)
    assert found == near([("dA", math.log(0.36) / 2**penalty), ("nw", math.log(0.20) / 2**penalty)])


def test_the_log_probability_of_a_hypothesis_is_the_model_s() -> None:
    [best] = THE.decode(max_new_tokens=2, num_beams=2, logprobs=1, repetition_penalty=1.5)
    assert THE.text(best.token_ids) == "dA"
    assert best.cumulative_logprob == pytest.approx(math.log(0.36), abs=1e-5)
    assert best.finish_reason == "length"
    assert best.logprobs is not None
    by_letter = [{THE.words[token]: value for token, value in each.items()} for each in best.logprobs]
    assert by_letter[0] == pytest.approx({"n": math.log(0.5), "d": math.log(0.4)}, abs=1e-5)
    assert by_letter[1] == pytest.approx({"A": math.log(0.9)}, abs=1e-5)


FOUR = Scripted("PQRS", {"P": {"P": 0.0871443, "Q": 0.2368828, "R": 0.0320586, "S": 0.6439143}})
"""The softmax of logits 3, 4, 2 and 5."""


def test_the_probabilities_of_four_logits() -> None:
    logits = np.array([3, 4, 2, 5], np.float32)
    assert FOUR.logits("P") - FOUR.logits("P")[3] == pytest.approx(logits - 5, abs=1e-5)
    [found] = FOUR.decode(max_new_tokens=1, logprobs=4)
    assert found.logprobs is not None
    shares = {token: round(math.exp(value), 4) for token, value in found.logprobs[0].items()}
    assert shares == {0: 0.0871, 1: 0.2369, 2: 0.0321, 3: 0.6439}


@pytest.mark.parametrize(
    ("filters", "shares"),
    [
        ({}, [0.0871, 0.2369, 0.0321, 0.6439]),
        ({"top_k": 2}, [0, 0.2689, 0, 0.7311]),
        # 0.6439 + 0.2369 = 0.8808 is still below 0.9, so that the third token is kept.
        ({"top_p": 0.9}, [0.0900, 0.2447, 0, 0.6652]),
        ({"top_p": 0.88}, [0, 0.2689, 0, 0.7311]),
        ({"min_p": 0.13}, [0.0900, 0.2447, 0, 0.6652]),
        ({"temperature": 0.5}, [0.0154, 0.1140, 0.0021, 0.8424]),
    ],
)
def test_what_sampling_draws_from_four_logits(filters: dict[str, float], shares: list[float]) -> None:
    limits = settings(batch_size=2000, max_batched_tokens=2000, num_blocks=4000)
    asked = request("row", [0], max_new_tokens=1, do_sample=True, num_return_sequences=2000, **filters)
    outputs = run_all(Engine(FOUR, limits), [asked])["row"].outputs
    drawn = Counter(output.token_ids[0] for output in outputs)
    assert set(drawn) == {token for token, share in enumerate(shares) if share}
    assert [drawn[token] / 2000 for token in range(4)] == pytest.approx(shares, abs=0.03)


SHORT_OR_LONG = Scripted("PEabx", {"P": {"a": 0.5, "E": 0.45}, "Pa": {"b": 0.8}, "Pab": {"E": 0.8}})
SHORT, LONG = math.log(0.45), math.log(0.5 * 0.8 * 0.8)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (0.0, [("E", SHORT), ("abE", LONG)]),
        (-1.0, [("E", SHORT), ("abE", LONG * 3)]),
        (1.0, [("abE", LONG / 3), ("E", SHORT)]),
        (0.3, [("E", SHORT), ("abE", LONG / 3**0.3)]),  # -0.7985 and -0.8195
        (0.4, [("abE", LONG / 3**0.4), ("E", SHORT)]),  # -0.7343 and -0.7985
    ],
)
def test_the_length_penalty_chooses_between_short_and_long(
    penalty: float, expected: list[tuple[str, float]]
) -> None:
    beams = {"num_beams": 2, "num_return_sequences": 2, "early_stopping": True}
    found = SHORT_OR_LONG.ranked(ends="E", max_new_tokens=3, length_penalty=penalty, **beams)
    assert found == near(expected)


STOPPING = Scripted(
    "PEabcdfghkxy",
    {
        "P": {"a": 0.4, "E": 0.3, "b": 0.2, "c": 0.1},
        "Pa": {"E": 0.6, "d": 0.4},
        "Pb": {"f": 0.7},
        "Pad": {"E": 0.5, "g": 0.48},
        "Pbf": {"h": 0.5},
        "Padg": {"E": 0.9},
        "Pbfh": {"k": 0.5},
    },
)
"""Two beams: "E" ends after the first step, "aE" after the second, "adE" after the third, "adgE" after the
fourth. Per token that is -1.204, -0.714, -0.842 and -0.668."""
ENDED = {
    "E": math.log(0.3),
    "aE": math.log(0.24) / 2,
    "adE": math.log(0.08) / 3,
    "adgE": math.log(0.06912) / 4,
}


@pytest.mark.parametrize(
    ("early", "best"),
    [
        # Two have ended, and that is enough.
        (True, ["aE", "E"]),
        # "ad" has -0.916 per token, which is better than "E"; "adg" has -0.856, which is worse than "adE".
        (False, ["aE", "adE"]),
        # Were the rest of six tokens certain, "adg" would have -0.428 per token.
        ("never", ["adgE", "aE"]),
    ],
)
def test_when_a_search_ends(early: bool | str, best: list[str]) -> None:
    found = STOPPING.ranked(
        ends="E", max_new_tokens=6, num_beams=2, num_return_sequences=2, early_stopping=early
    )
    assert found == near([(text, ENDED[text]) for text in best])


TWO_ENDS = Scripted("PEFabx", {"P": {"a": 0.5, "E": 0.3, "F": 0.19}, "Pa": {"F": 0.7, "b": 0.3}})


def test_either_of_two_end_tokens_ends_a_hypothesis() -> None:
    beams = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.0, "early_stopping": True}
    found = TWO_ENDS.decode(ends="EF", max_new_tokens=2, **beams)
    assert [(TWO_ENDS.text(each.token_ids), each.finish_reason) for each in found] == [
        ("aF", "stop"),
        ("E", "stop"),
    ]
    assert [each.score for each in found] == pytest.approx([math.log(0.35), math.log(0.3)], abs=1e-5)


def test_an_end_token_that_is_not_among_the_best_ends_nothing() -> None:
    """ "F" is the third token of two beams: it neither ends a hypothesis nor takes the place of one."""
    beams = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.0, "early_stopping": True}
    found = TWO_ENDS.ranked(ends="F", max_new_tokens=2, **beams)
    # "E" is a word like others here, followed by any of the six letters: 0.3 / 6.
    assert found == near([("aF", math.log(0.35)), ("ab", math.log(0.15))])


def test_enough_candidates_are_looked_at_for_beams_to_go_on() -> None:
    """The four best continuations of two beams end, two by each end token: the fifth and sixth live on."""
    model = Scripted(
        "PEFabcd",
        {
            "P": {"a": 0.5, "b": 0.4},
            "Pa": {"E": 0.4, "F": 0.35, "c": 0.25},
            "Pb": {"E": 0.45, "F": 0.35, "d": 0.2},
            "Pac": {"E": 0.99},
        },
    )
    beams = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": "never"}
    found = model.ranked(ends="EF", max_new_tokens=3, **beams)
    assert found == near([("acE", math.log(0.5 * 0.25 * 0.99) / 9), ("aE", math.log(0.2) / 4)])


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        # log(0.5 / 0.4) = 0.223 is what "n" is ahead of "d".
        (0.2, [("n", math.log(0.5)), ("n", math.log(0.5) - 0.2)]),
        (0.25, [("n", math.log(0.5)), ("d", math.log(0.4))]),
    ],
)
def test_the_diversity_penalty_pushes_groups_apart(penalty: float, expected: list[tuple[str, float]]) -> None:
    groups = {"num_beams": 2, "num_beam_groups": 2, "num_return_sequences": 2}
    assert THE.ranked(max_new_tokens=1, diversity_penalty=penalty, **groups) == near(expected)


def test_a_group_is_only_penalised_for_the_tokens_of_its_own_step() -> None:
    groups = {"num_beams": 2, "num_beam_groups": 2, "num_return_sequences": 2, "diversity_penalty": 0.25}
    found = THE.ranked(max_new_tokens=2, **groups)
    assert found == near([("dA", math.log(0.36) / 2), ("nw", math.log(0.20) / 2)])


def test_a_token_costs_once_for_each_earlier_group_that_chose_it() -> None:
    """The third group pays 2 x 0.15 for "n", which is more than the 0.223 that it is ahead."""
    groups = {"num_beams": 3, "num_beam_groups": 3, "num_return_sequences": 3, "diversity_penalty": 0.15}
    found = THE.ranked(max_new_tokens=1, **groups)
    assert found == near([("n", math.log(0.5)), ("n", math.log(0.5) - 0.15), ("d", math.log(0.4))])


CONTRAST = Scripted(
    "Pabcd",
    {"P": {"a": 0.6, "b": 0.4}, "Pb": {"c": 0.6, "d": 0.3}, "Pa": {"c": 0.9, "d": 0.1}},
    {
        "P": (1, 0),
        "Pa": (5, 0),  # cosine 1 with "P"
        "Pb": (0, 0.2),  # cosine 0
        "Pbc": (3, 0),  # cosine 1 with "P", 0 with "b"
        "Pbd": (-2, 0),  # cosines -1 and 0
        "Pac": (0, 1),
        "Pad": (0, -1),
    },
)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        # 0.6 (1 - alpha) - alpha against 0.4 (1 - alpha): they are equal at alpha = 1/6.
        (0.16, "a"),
        (0.17, "b"),
    ],
)
def test_contrastive_search_weighs_likelihood_and_likeness(alpha: float, expected: str) -> None:
    [found] = CONTRAST.decode(max_new_tokens=1, penalty_alpha=alpha, top_k=2)
    assert CONTRAST.text(found.token_ids) == expected


def test_contrastive_search_looks_at_the_most_similar_of_the_whole_context() -> None:
    """ "c" is like the prompt, not like the last token: 0.5 x 0.6 - 0.5 x 1 against 0.5 x 0.3 - 0."""
    [found] = CONTRAST.decode(max_new_tokens=2, penalty_alpha=0.5, top_k=2)
    assert CONTRAST.text(found.token_ids) == "bd"
    assert found.cumulative_logprob == pytest.approx(math.log(0.4 * 0.3), abs=1e-5)


def test_samples_are_ranked_by_their_log_probability() -> None:
    found = THE.ranked(max_new_tokens=1, do_sample=True, best_of=8, num_return_sequences=8)
    probabilities = {"n": 0.5, "d": 0.4, "c": 0.1}
    assert found == near([(text, math.log(probabilities[text])) for text, _ in found])
    assert [text for text, _ in found] == sorted((text for text, _ in found), key="ndc".index)
    assert len({text for text, _ in found}) > 1
    assert THE.ranked(max_new_tokens=1, do_sample=True, best_of=8, num_return_sequences=3) == found[:3]


@pytest.mark.parametrize(("penalty", "best"), [(0.0, ("E", SHORT)), (1.0, ("abE", LONG / 3))])
def test_the_length_penalty_ranks_samples(penalty: float, best: tuple[str, float]) -> None:
    found = SHORT_OR_LONG.ranked(
        ends="E", max_new_tokens=3, do_sample=True, best_of=16, length_penalty=penalty
    )
    assert found == near([best])


def test_drafted_tokens_are_taken_while_the_model_agrees() -> None:
    """After "abcd" the prompt has "efP", of which the model would say "e" and "f", but then "g"."""
    prompt, output = "PabcdefPabc", "defgh"
    says = {prompt + output[:place]: {output[place]: 0.9} for place in range(5)}
    model = Scripted("Pabcdefgh", says)
    asked = request(
        "row", map(model.words.index, prompt), max_new_tokens=5, prompt_lookup_num_tokens=3, eos_token_id=[]
    )
    [found] = run_all(Engine(model, settings()), [asked])["row"].outputs
    assert model.text(found.token_ids) == output
    assert (found.num_drafted_tokens, found.num_accepted_tokens) == (3, 2)
    assert found.cumulative_logprob == pytest.approx(5 * math.log(0.9), abs=1e-5)


@pytest.mark.parametrize(("name", "value"), list(product(["num_beams", "best_of"], [2, 3])))
def test_a_search_of_one_word_returns_what_there_is(name: str, value: int) -> None:
    """With a single likely token every strategy finds it."""
    model = Scripted("Pax", {"P": {"a": 1 - LEAST}, "Pa": {"a": 1 - LEAST}})
    [found] = model.decode(max_new_tokens=2, **{name: value}, do_sample=name == "best_of")
    assert model.text(found.token_ids) == "aa"
