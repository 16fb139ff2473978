"""Declaration of a decoding parameter: all about it beside its name, its type and its default."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar

from mindbatch.fields.field import Field, Need, declare, declared_fields
from mindbatch.fields.kinds import ValueKind
from mindbatch.io.error_lines import shown_parameter, under_own_names
from mindbatch.io.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Asks:
    """The strategy that a parameter asks for by any value but its default.

    samples: whether it can sample. form_of: the parameter of the strategy that it is a form of; all others
    exclude each other. outputs: the most that it returns, where that is "one" or the parameter's value.
    """

    strategy: str
    samples: bool = True
    form_of: str = ""
    outputs: Literal["any", "one", "value"] = "any"


@dataclass(frozen=True)
class Parameter(Field):
    """Declaration of a parameter; its default is the value without effect.

    idle: a value beside the default that needs nothing.
    asks: the strategy that it asks for.
    is_filter: whether it narrows what sampling chooses among.
    widens: whether it makes a row take several tokens of a step.
    openai: its names in OpenAI's requests.
    of_model: whether a model's files may recommend a value.
    in_config: whether configurations and data can hold a value.
    """

    idle: Any = None
    asks: Asks | None = None
    is_filter: bool = False
    widens: bool = False
    openai: tuple[str, ...] = ()
    of_model: bool = True
    in_config: bool = True


def parameter(default: Any, kind: ValueKind, meaning: str, **more: Any) -> Any:
    """Declares a field of `DecodingParams` by the fields of `Parameter`."""
    return declare(Parameter(default, kind, meaning, **more))


def parameters_of(schema: type) -> dict[str, Parameter]:
    return declared_fields(schema)


def other_names(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """By OpenAI's name of a parameter, its own where that is another."""
    pairs = ((other, name) for name, declared in parameters.items() for other in declared.openai)
    return {other: name for other, name in pairs if other not in parameters}


def with_other_names(declared: type[T]) -> type[T]:
    """Lets the dataclass accept OpenAI's names; raises ConfigError for a parameter set under two names."""
    names, init = other_names(parameters_of(declared)), declared.__init__

    @wraps(init)
    def with_names(self: T, **arguments: Any) -> None:
        own, twice = under_own_names(arguments, names)
        if twice:
            raise ConfigError(f"decoding.{line}" for line in twice)
        init(self, **own)

    setattr(declared, "__init__", with_names)  # noqa: B010 - which the type checker would refuse
    return declared


Parameters = Mapping[str, Parameter]
_FEWEST_FIRST = ("one", "value", "any")

SAMPLING = Need(lambda p: p.do_sample, "do_sample", "set decoding.do_sample=true")
WARMTH = Need(
    lambda p: p.temperature > 0 or not p.do_sample, "temperature", "set decoding.temperature above 0"
)


def _takes_likeliest(params: Any) -> bool:
    """True if top_k means greedy decoding, which MindFormers' users write this way."""
    return bool(params.top_k == 1 and params.num_beams == 1)


TOP_K = (
    Need(lambda p: p.do_sample or p.penalty_alpha > 0 or _takes_likeliest(p), "do_sample", SAMPLING.remedy),
    Need(lambda p: WARMTH.met(p) or _takes_likeliest(p), "temperature", WARMTH.remedy),
)
BEAMS = Need(lambda p: p.num_beams > 1, "num_beams", "set decoding.num_beams above 1")
BEAM_GROUPS = Need(lambda p: p.num_beam_groups > 1, "num_beam_groups", "set decoding.num_beam_groups above 1")
RANKING = Need(
    lambda p: p.num_beams > 1 or p.best_of is not None,
    "num_beams",
    "set decoding.num_beams above 1 or decoding.best_of,",
)
LOOKUP = Need(
    lambda p: p.prompt_lookup_num_tokens > 0,
    "prompt_lookup_num_tokens",
    "set decoding.prompt_lookup_num_tokens above 0",
)
ENDS = Need(lambda p: p.eos_token_id != (), "eos_token_id", "name end tokens")
FREE_BEGINNING = Need(
    lambda p: p.forced_bos_token_id is None, "forced_bos_token_id", "set decoding.forced_bos_token_id=null"
)
SCORED_PROMPT = Need(
    lambda p: p.prompt_logprobs is not None, "prompt_logprobs", "set decoding.prompt_logprobs"
)
EMBEDDING = Need(lambda p: p.pooling is not None, "pooling", "set decoding.pooling")


def combination_errors(params: Any, parameters: Parameters) -> list[str]:
    """Returns a line for each set of values that exclude each other."""
    requested = requested_strategies(params, parameters)
    return [
        *_several_strategies(params, requested),
        *_never_sampling(params, requested),
        *_two_constraints(params),
        *_without_effect(params, parameters, requested),
        *_unfit_groups(params),
        *_unfit_candidates(params),
        *_too_many_outputs(params, requested),
        *_crossed_lengths(params),
        *_forced_and_suppressed(params),
    ]


def shortest_error(params: Any, max_tokens: int) -> str | None:
    """Returns the error of a minimum length above `max_tokens`, the prompt included; None if there is
    none."""
    for name, allowed in (("min_length", max_tokens), ("min_new_tokens", max_tokens - 1)):
        if getattr(params, name) > allowed:
            together = f"prompt and output together may have {max_tokens} tokens"
            return f"{_shown(params, name)}: {together}; allowed: 0 to {allowed}"
    return None


def requested_strategies(params: Any, parameters: Parameters) -> dict[str, Asks]:
    """Returns the requested strategies by parameter; those with the fewest outputs come first."""
    requested = {
        name: parameter.asks
        for name, parameter in parameters.items()
        if parameter.asks and _is_given(params, name, parameter)
    }
    return dict(sorted(requested.items(), key=lambda item: _FEWEST_FIRST.index(item[1].outputs)))


def _is_given(params: Any, name: str, parameter: Parameter) -> bool:
    """True if the parameter has a value that should have an effect."""
    value = getattr(params, name)
    return bool(value != parameter.default and value != parameter.idle)


def _several_strategies(params: Any, requested: Mapping[str, Asks]) -> Iterator[str]:
    first, *others = [name for name, asks in requested.items() if not asks.form_of] or [""]
    for other in others:
        yield (
            f"{_shown(params, first)} cannot go with {_shown(params, other)}: {requested[first].strategy} "
            f"and {requested[other].strategy} are two strategies; choose one"
        )


def _never_sampling(params: Any, requested: Mapping[str, Asks]) -> Iterator[str]:
    for name, asks in requested.items():
        if params.do_sample and not asks.samples:
            yield (
                f"{_shown(params, name)} cannot go with decoding.do_sample=true: {asks.strategy} does not "
                "sample; set decoding.do_sample=false"
            )


def _two_constraints(params: Any) -> Iterator[str]:
    if params.regex is not None and params.json_schema is not None:
        schema = _shown(params, "json_schema")
        yield f"{_shown(params, 'regex')} cannot go with {schema}: the output can follow only one of them"


def _without_effect(params: Any, parameters: Parameters, requested: Mapping[str, Asks]) -> Iterator[str]:
    for name, parameter in parameters.items():
        for need in parameter.needs:
            if _is_given(params, name, parameter) and not need.met(params):
                yield f"{_shown(params, name)} has no effect with {_cause(params, need, requested)}"


def _cause(params: Any, need: Need, requested: Mapping[str, Asks]) -> str:
    """Returns the setting that prevents an effect, and a remedy; a strategy without sampling is the first."""
    if need.missing == "do_sample":
        for name, asks in requested.items():
            if not asks.samples:
                return f"{_shown(params, name)}, for {asks.strategy} does not sample; remove it"
    return f"{_shown(params, need.missing)}; {need.remedy} or remove it"


def _unfit_groups(params: Any) -> Iterator[str]:
    if params.num_beam_groups == 1 or params.num_beams == 1:
        return
    if params.num_beams % params.num_beam_groups:
        yield f"{_shown(params, 'num_beam_groups')} must divide {_shown(params, 'num_beams')}"
    if params.diversity_penalty == 0:
        yield (
            f"{_shown(params, 'diversity_penalty')} cannot go with {_shown(params, 'num_beam_groups')}: all "
            "groups would find the same; set it above 0"
        )


def _unfit_candidates(params: Any) -> Iterator[str]:
    if params.penalty_alpha > 0 and params.top_k < 2:
        yield (
            f"{_shown(params, 'top_k')} cannot go with {_shown(params, 'penalty_alpha')}: contrastive search "
            "chooses among that many of the likeliest tokens; set decoding.top_k to 2 or more"
        )


def _too_many_outputs(params: Any, requested: Mapping[str, Asks]) -> Iterator[str]:
    count = _shown(params, "num_return_sequences")
    if params.num_return_sequences == 1:
        return
    limits = [(name, asks) for name, asks in requested.items() if asks.outputs != "any"]
    for name, asks in limits[:1]:
        if asks.outputs == "one":
            yield f"{count} cannot go with {_shown(params, name)}: {asks.strategy} has one output; use 1"
        elif params.num_return_sequences > getattr(params, name):
            yield f"{count} is above {_shown(params, name)}; must be at most that"
    if not limits and params.greedy:
        cause = _shown(params, "temperature" if params.do_sample else "do_sample")
        yield f"{count} cannot go with {cause}: greedy decoding has one output; sample, or use 1"


def _crossed_lengths(params: Any) -> Iterator[str]:
    for low, high in (
        ("min_length", "max_length"),
        ("min_new_tokens", "max_new_tokens"),
        ("min_new_tokens", "max_length"),
    ):
        limit = getattr(params, high)
        if limit is not None and getattr(params, low) > limit:
            yield f"{_shown(params, low)} is above {_shown(params, high)}; must be at most that"
    limit = params.max_total_tokens(0, params.min_new_tokens)
    if params.max_length is None and params.max_new_tokens is None and params.min_new_tokens > limit:
        low, high = _shown(params, "min_new_tokens"), _shown(params, "max_new_tokens")
        yield f"{low} is above {high}, which is {limit}; set decoding.max_new_tokens"


def _forced_and_suppressed(params: Any) -> Iterator[str]:
    """Other bans come before a token is forced; after that, suppress_tokens would leave nothing to choose."""
    forced = {
        "forced_bos_token_id": () if params.forced_bos_token_id is None else (params.forced_bos_token_id,),
        "forced_eos_token_id": params.forced_eos_token_id or (),
    }
    for name, tokens in forced.items():
        if tokens and set(tokens) <= set(params.suppress_tokens):
            other = _shown(params, "suppress_tokens")
            yield f"{_shown(params, name)} cannot go with {other}, which leaves nothing to choose"


def _shown(params: Any, name: str) -> str:
    return shown_parameter(name, getattr(params, name))
