"""The cases of make_decoding_fixtures.py: which parameters are tried on which model."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

MODELS = ("gpt2", "llama3", "stories260K")
"""The first two are random ones of tests/numerics/fixtures/models.npz; llama3 has grouped queries."""
GREEDY_STEPS = 20
Params = dict[str, Any]


@dataclass(frozen=True)
class Material:
    """What the parameters of a case are made from, so that they change something.

    plain: the greedy continuation of the prompt.
    end_tokens: tokens that beams come upon at different lengths.
    """

    random: random.Random
    prompt: list[int]
    plain: list[int]
    end_tokens: list[int]
    vocab_size: int


Part = Callable[[Material], Params]


@dataclass(frozen=True)
class Plan:
    """One case: a strategy's parameters, and parts that are made from the prompt's own continuation.

    effect: the names among the parameters without which the output must be another one.
    one_token: the prompt has a single token.
    """

    kind: str
    params: Params
    parts: Sequence[Part] = ()
    effect: Sequence[str] = ()
    one_token: bool = False
    names: Sequence[str] = field(default=())


def ends(material: Material, count: int) -> Params:
    """End tokens that really occur."""
    return {"eos_token_id": material.end_tokens[:count]}


def early_end(material: Material) -> Params:
    """An end token that greedy decoding meets early."""
    return {"eos_token_id": [material.plain[1]]}


def sequence_bias(m: Material) -> Params:
    biases = {
        (m.plain[1],): -4.0,
        (m.random.randrange(3, m.vocab_size),): 2.5,
        (m.plain[4], m.plain[5]): -7.0,
    }
    return {"sequence_bias": [[list(tokens), bias] for tokens, bias in biases.items()]}


def bad_words(m: Material) -> Params:
    return {"bad_words_ids": [[m.plain[2]], [m.plain[3], m.plain[4]], [m.plain[0], m.plain[1], m.plain[5]]]}


def exponential_decay(m: Material) -> Params:
    end = m.random.randrange(3, m.vocab_size)
    return {
        "eos_token_id": [end],
        "exponential_decay_length_penalty": [m.random.randrange(1, 6), m.random.choice([1.1, 1.3, 1.7])],
    }


PROCESSORS: dict[str, Part] = {
    "sequence_bias": sequence_bias,
    "encoder_repetition_penalty": lambda m: {"encoder_repetition_penalty": m.random.choice([0.6, 1.5, 2.5])},
    "repetition_penalty": lambda m: {"repetition_penalty": m.random.choice([0.8, 1.3, 2.0])},
    "no_repeat_ngram_size": lambda m: {"no_repeat_ngram_size": m.random.choice([1, 2, 3])},
    "encoder_no_repeat_ngram_size": lambda m: {"encoder_no_repeat_ngram_size": m.random.choice([1, 2])},
    "bad_words_ids": bad_words,
    "min_length": lambda m: early_end(m) | {"min_length": len(m.prompt) + m.random.randrange(3, 9)},
    "min_new_tokens": lambda m: early_end(m) | {"min_new_tokens": m.random.randrange(3, 9)},
    "forced_bos_token_id": lambda m: {"forced_bos_token_id": m.random.randrange(3, m.vocab_size)},
    "forced_eos_token_id": lambda m: {"forced_eos_token_id": [m.random.randrange(3, m.vocab_size)]},
    "exponential_decay_length_penalty": exponential_decay,
    "suppress_tokens": lambda m: {"suppress_tokens": sorted({m.plain[0], m.plain[3], m.plain[6]})},
    "begin_suppress_tokens": lambda m: {"begin_suppress_tokens": [m.plain[0]]},
}
"""Every processor that is no sampling filter. Not among them: renormalize_logits, idle by itself."""
INCOMPARABLE = {("forced_bos_token_id", "begin_suppress_tokens"), ("min_length", "min_new_tokens")}
"""transformers moves the suppression on by a token when the first is forced, here "first" stays first; and it
forgets min_length when min_new_tokens is given, here both hold."""


def plans(strategy: str, model: str) -> Iterator[Plan]:
    """The cases of a model in a fixed order."""
    yield from {"main": _main, "group_beam": _groups, "contrastive": _contrastive}[strategy](model)


def _main(model: str) -> Iterator[Plan]:
    yield from _beams()
    yield from _beams_processed()
    yield from _greedy_alone()
    yield from _greedy_pairs(model)


def _beams() -> Iterator[Plan]:
    grid = product((2, 4, 8), (-1.0, 0.0, 0.5, 1.0, 2.0), (False, True, "never"))
    for number, (beams, penalty, early) in enumerate(grid):
        params = {
            "num_beams": beams,
            "length_penalty": penalty,
            "early_stopping": early,
            "num_return_sequences": (beams, 1, 2)[number % 3],
        }
        yield Plan("beam", params, [_ends(1 + number % 3 if number % 7 else 0)])


def _ends(count: int) -> Part:
    return lambda material: ends(material, count)


def _beams_processed() -> Iterator[Plan]:
    for beams, penalty in ((2, 1.0), (4, 0.0), (4, 2.0), (8, 0.5)):
        params = {
            "num_beams": beams,
            "length_penalty": penalty,
            "no_repeat_ngram_size": 2,
            "num_return_sequences": 2,
        }
        yield Plan("beam", params, [_ends(1)], ["no_repeat_ngram_size"])
    for number, (name, part) in enumerate(PROCESSORS.items()):
        params = {"num_beams": 3 + number % 2, "num_return_sequences": 1 + number % 3}
        yield Plan("beam", params, [_ends(2), part], [name], name == "forced_bos_token_id")
    for name in ("repetition_penalty", "suppress_tokens"):
        params = {"num_beams": 4, "renormalize_logits": True, "num_return_sequences": 3}
        yield Plan("beam", params, [_ends(2), PROCESSORS[name]], [name])


def _greedy_alone() -> Iterator[Plan]:
    for count in (0, 1, 2):
        yield Plan("greedy", {}, [_ends(count)])
    for name, part in PROCESSORS.items():
        for _ in range(2):
            yield Plan("greedy", {}, [part], [name], name == "forced_bos_token_id")


def _greedy_pairs(model: str) -> Iterator[Plan]:
    """Every pair comes on one model."""
    pairs = [pair for pair in combinations(PROCESSORS, 2) if pair not in INCOMPARABLE]
    for first, second in pairs[MODELS.index(model) :: len(MODELS)]:
        alone = "forced_bos_token_id" in (first, second)
        yield Plan("greedy", {}, [PROCESSORS[first], PROCESSORS[second]], [], alone, (first, second))


def _groups(model: str) -> Iterator[Plan]:
    shapes = product(((6, 3), (4, 2), (6, 2)), (0.5, 1.0, 2.5))
    for number, ((beams, groups), penalty) in enumerate(shapes):
        params = {
            "num_beams": beams,
            "num_beam_groups": groups,
            "diversity_penalty": penalty,
            "num_return_sequences": (beams, 1, 3)[number % 3],
            "early_stopping": (False, True)[number % 2],
            "length_penalty": (1.0, 0.5, 2.0, -1.0)[number % 4],
        }
        yield Plan("group_beam", params, [_ends((1, 0, 2)[number % 3])], ["diversity_penalty"])
    for name in ("no_repeat_ngram_size", "repetition_penalty", "min_new_tokens", "bad_words_ids"):
        params = {
            "num_beams": 6,
            "num_beam_groups": 3,
            "diversity_penalty": 0.8,
            "num_return_sequences": 3,
        }
        yield Plan("group_beam", params, [_ends(1), PROCESSORS[name]], [name])
    for parts in ([_ends(1)], [_ends(2)], [_ends(1), PROCESSORS["repetition_penalty"]]):
        params = {
            "num_beams": 4,
            "num_beam_groups": 2,
            "diversity_penalty": 0.7,
            "num_return_sequences": 4,
            "renormalize_logits": True,
        }
        yield Plan("group_beam", params, parts, ["renormalize_logits"])


def _contrastive(model: str) -> Iterator[Plan]:
    for number, (k, alpha) in enumerate(product((2, 4, 8), (0.3, 0.6, 0.9))):
        params = {"top_k": k, "penalty_alpha": alpha}
        yield Plan("contrastive", params, [_ends(number % 3)], ["penalty_alpha"])
    for name in ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "suppress_tokens"):
        params = {"top_k": 4, "penalty_alpha": 0.6}
        yield Plan("contrastive", params, [PROCESSORS[name]], [name])
