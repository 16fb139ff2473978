"""Which values of decoding parameters cannot go together: one contradicts another, or leaves it idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mindbatch.decoding.rules import shown

if TYPE_CHECKING:
    from mindbatch.decoding.params import DecodingParams


def combination_faults(params: DecodingParams) -> list[str]:
    """A line for each set of values, each allowed by its own rule, that cannot go together."""
    checks = (
        _several_strategies,
        _without_effect,
        _unfit_groups,
        _unfit_candidates,
        _too_many_outputs,
        _crossed_lengths,
        _forced_and_suppressed,
    )
    return [fault for check in checks for fault in check(params)]


@dataclass(frozen=True)
class _Need:
    """What parameters need to have an effect: that `met` holds, which with value of `missing` it does not."""

    names: tuple[str, ...]
    met: Callable[[DecodingParams], bool]
    missing: str
    remedy: str


FILTERS = ("top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""What sampling chooses among."""
_NEEDS = (
    _Need(("temperature", *FILTERS[1:]), lambda p: p.do_sample, "do_sample", "set do_sample=true"),
    _Need(("top_k",), lambda p: p.do_sample or p.penalty_alpha > 0, "do_sample", "set do_sample=true"),
    _Need(FILTERS, lambda p: p.temperature > 0 or not p.do_sample, "temperature", "set temperature above 0"),
    _Need(("best_of",), lambda p: p.do_sample, "do_sample", "set do_sample=true"),
    _Need(
        ("best_of",),
        lambda p: p.temperature > 0 or not p.do_sample,
        "temperature",
        "set temperature above 0",
    ),
    _Need(
        ("num_beam_groups", "early_stopping"), lambda p: p.num_beams > 1, "num_beams", "set num_beams above 1"
    ),
    _Need(
        ("diversity_penalty",),
        lambda p: p.num_beam_groups > 1,
        "num_beam_groups",
        "set num_beam_groups above 1",
    ),
    _Need(
        ("length_penalty",),
        lambda p: p.num_beams > 1 or p.best_of is not None,
        "num_beams",
        "set num_beams above 1 or best_of,",
    ),
    _Need(
        ("max_matching_ngram_size",),
        lambda p: p.prompt_lookup_num_tokens > 0,
        "prompt_lookup_num_tokens",
        "set prompt_lookup_num_tokens above 0",
    ),
    _Need(
        ("min_length", "min_new_tokens", "exponential_decay_length_penalty"),
        lambda p: p.eos_token_id != (),
        "eos_token_id",
        "name end tokens",
    ),
    _Need(
        ("begin_suppress_tokens",),
        lambda p: p.forced_bos_token_id is None,
        "forced_bos_token_id",
        "set forced_bos_token_id=null",
    ),
)
_IDLE_BESIDE_DEFAULT = {"temperature": 0.0}
"""Without sampling a temperature of 0 says what is done anyway."""


def _without_effect(params: DecodingParams) -> Iterator[str]:
    neutral = {field.name: field.default for field in fields(params)}
    for need in _NEEDS:
        if need.met(params):
            continue
        for name in need.names:
            value = getattr(params, name)
            if value != neutral[name] and value != _IDLE_BESIDE_DEFAULT.get(name):
                yield f"{_shown(params, name)} has no effect with {_cause(params, need)}"


def _cause(params: DecodingParams, need: _Need) -> str:
    """What is in the way, and what to do; not that which the strategy asked for refuses in its turn."""
    if need.missing == "do_sample":
        for name, strategy in _NEVER_SAMPLE.items():
            if getattr(params, name) != _OFF[name]:
                return f"{_shown(params, name)}, for {strategy} does not sample; remove it"
    return f"{_shown(params, need.missing)}; {need.remedy} or remove it"


_NEVER_SAMPLE = {"penalty_alpha": "contrastive search", "num_beam_groups": "group beam search"}
_STRATEGIES = {
    "penalty_alpha": "contrastive search",
    "num_beams": "beam search",
    "best_of": "sample-and-rank",
    "num_assistant_tokens": "speculative decoding with an assistant",
    "prompt_lookup_num_tokens": "speculative decoding by prompt lookup",
}
_OFF: dict[str, Any] = {
    "penalty_alpha": 0.0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "best_of": None,
    "num_assistant_tokens": 0,
    "prompt_lookup_num_tokens": 0,
}


def _several_strategies(params: DecodingParams) -> Iterator[str]:
    first, *others = [name for name in _STRATEGIES if getattr(params, name) != _OFF[name]] or [""]
    for other in others:
        yield (
            f"{_shown(params, first)} cannot go with {_shown(params, other)}: {_STRATEGIES[first]} and "
            f"{_STRATEGIES[other]} are two strategies; choose one"
        )
    for name, strategy in _NEVER_SAMPLE.items():
        if params.do_sample and getattr(params, name) != _OFF[name]:
            yield (
                f"{_shown(params, name)} cannot go with decoding.do_sample=true: {strategy} does not sample; "
                "set do_sample=false"
            )
    if params.regex is not None and params.json_schema is not None:
        schema = _shown(params, "json_schema")
        yield f"{_shown(params, 'regex')} cannot go with {schema}: the output can follow only one of them"


def _unfit_groups(params: DecodingParams) -> Iterator[str]:
    if params.num_beam_groups == 1 or params.num_beams == 1:
        return
    if params.num_beams % params.num_beam_groups:
        yield f"{_shown(params, 'num_beam_groups')} must divide {_shown(params, 'num_beams')}"
    if params.diversity_penalty == 0:
        yield (
            f"{_shown(params, 'diversity_penalty')} cannot go with {_shown(params, 'num_beam_groups')}: all "
            "groups would find the same; set it above 0"
        )


def _unfit_candidates(params: DecodingParams) -> Iterator[str]:
    if params.penalty_alpha > 0 and params.top_k < 2:
        yield (
            f"{_shown(params, 'top_k')} cannot go with {_shown(params, 'penalty_alpha')}: contrastive search "
            "chooses among the top_k likeliest tokens; set it to 2 or more"
        )


def _too_many_outputs(params: DecodingParams) -> Iterator[str]:
    count = _shown(params, "num_return_sequences")
    if params.num_return_sequences == 1:
        return
    if params.penalty_alpha > 0:
        cause = _shown(params, "penalty_alpha")
        yield f"{count} cannot go with {cause}: contrastive search has one output; use 1"
    elif params.num_beams > 1 or params.best_of is not None:
        name = "num_beams" if params.num_beams > 1 else "best_of"
        if params.num_return_sequences > getattr(params, name):
            yield f"{count} is above {_shown(params, name)}; must be at most that"
    elif params.greedy:
        cause = "decoding.do_sample=false" if not params.do_sample else "decoding.temperature=0.0"
        yield f"{count} cannot go with {cause}: greedy decoding has one output; sample, or use 1"


def _crossed_lengths(params: DecodingParams) -> Iterator[str]:
    for low, high in (
        ("min_length", "max_length"),
        ("min_new_tokens", "max_new_tokens"),
        ("min_new_tokens", "max_length"),
    ):
        limit = getattr(params, high)
        if limit is not None and getattr(params, low) > limit:
            yield f"{_shown(params, low)} is above {_shown(params, high)}; must be at most that"


def _forced_and_suppressed(params: DecodingParams) -> Iterator[str]:
    """Other bans come before a token is forced; after that, suppress_tokens would leave nothing to choose."""
    forced = {
        "forced_bos_token_id": () if params.forced_bos_token_id is None else (params.forced_bos_token_id,),
        "forced_eos_token_id": params.forced_eos_token_id or (),
    }
    for name, tokens in forced.items():
        if tokens and set(tokens) <= set(params.suppress_tokens):
            other = _shown(params, "suppress_tokens")
            yield f"{_shown(params, name)} cannot go with {other}, which leaves nothing to choose"


def _shown(params: DecodingParams, name: str) -> str:
    return shown(name, getattr(params, name))
