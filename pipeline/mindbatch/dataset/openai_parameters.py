"""Owns decoding parameters and constraints in bodies of OpenAI's requests: each name that they have there."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mindbatch.dataset.column_rows import PARAMETERS as OWN_NAMES
from mindbatch.dataset.records import RowDraft
from mindbatch.decoding.parameter import requested_strategies
from mindbatch.decoding.params import FILTERS, DecodingParams
from mindbatch.decoding.params import PARAMETERS as DECODING
from mindbatch.io.error_lines import shown

_ELSEWHERE = ("logprobs", "best_of", "regex", "json_schema", "pooling", "dimensions", "prompt_logprobs_start")
"""Own names that are read in a way of their own, or belong to an endpoint of their own."""
_SAME_MEANING = {name: name for name in OWN_NAMES if name not in _ELSEWHERE} | {
    field: name for name, declared in DECODING.items() for field in declared.openai
}
"""Fields that are decoding parameters, some under another name."""
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice"}
"""vLLM's older fields, each with its name within structured_outputs."""
_STRUCTURES = (*_GUIDED.values(), "json_object")
"""Constraints within structured_outputs."""
PARAMETERS = (
    *_SAME_MEANING,
    *("logprobs", "top_logprobs", "best_of", "use_beam_search", "ignore_eos", "stop_token_ids"),
    *("response_format", "structured_outputs", *_GUIDED),
)
_NEUTRAL = {
    "temperature": 0,
    **{name: DECODING[name].default for name in (*FILTERS, "num_return_sequences", "best_of")},
}
"""Any other value asks for sampling, which is what OpenAI does unless the temperature is 0."""
_OF_SEARCHES = {"num_beams": "num_return_sequences", "penalty_alpha": "top_k"}
"""Parameters of searches, each with one of `_NEUTRAL` that says of it how many, and asks for no sampling."""
_FORMATS: dict[str, Any] = {"text": None, "json_object": {"type": "object"}, "json_schema": None}
"""By type of response_format, the schema that it stands for."""
_SCHEMA_FIELDS = {"name", "description", "schema", "strict"}
"""Fields of a format with its own schema, which the output follows strictly, requested or not."""


def read_parameters(body: Mapping[str, Any], is_chat: bool, base: DecodingParams, draft: RowDraft) -> None:
    """Puts every decoding parameter of `body` into `draft`; null means left out, as it does for OpenAI.

    base: the run's parameters, which apply where the body says nothing.
    """
    fields = {name: value for name, value in body.items() if value is not None}
    for name in [name for name in _SAME_MEANING if name in fields]:
        value = 0 if (name, fields[name]) == ("top_k", -1) else fields[name]
        take(draft, _SAME_MEANING[name], value, name)
    _read_logprobs(fields, is_chat, draft)
    _read_ends(fields, draft)
    _read_constraints(fields, draft)
    if flag(fields, "use_beam_search", draft):
        _read_beams(fields, draft)
    else:
        _read_candidates(fields, base, draft)


def take(draft: RowDraft, parameter: str, value: Any, field: str) -> None:
    """Takes a parameter from a field of the body, where none before it says something else."""
    if draft.decoding.get(parameter, value) != value:
        draft.row_errors.append(f"body.{field}={shown(value)}: contradicts {draft.shown_as[parameter]}")
    draft.decoding[parameter] = value
    draft.shown_as[parameter] = f"body.{field}"


def flag(fields: Mapping[str, Any], name: str, draft: RowDraft) -> bool:
    """True if the field is; one that is left out, or is neither true nor false, is not."""
    value = fields.get(name, False)
    if not isinstance(value, bool):
        draft.row_errors.append(f"body.{name}={shown(value)}: must be true or false")
    return value is True


def _read_candidates(fields: Mapping[str, Any], base: DecodingParams, draft: RowDraft) -> None:
    """Sampling, with best_of the best by log-probability per token, which 1 of 1 is not; or a search."""
    if "best_of" in fields:
        is_off = fields["best_of"] is not True and fields["best_of"] == fields.get("n", 1) == 1
        take(draft, "best_of", None if is_off else fields["best_of"], "best_of")
    requested = requested_strategies(SimpleNamespace(**{**vars(base), **draft.decoding}), DECODING)
    of_search = {name for search, name in _OF_SEARCHES.items() if search in requested}
    if draft.decoding.get("temperature") == 0:
        for name in {
            *FILTERS
        } - of_search:  # OpenAI takes the likeliest tokens then, whatever else is requested
            draft.decoding.pop(name, None)
    neutral = {name: value for name, value in _NEUTRAL.items() if name not in of_search}
    if any(draft.decoding.get(name, value) != value for name, value in neutral.items()):
        draft.decoding.setdefault("do_sample", True)


def _read_beams(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """vLLM's beam search has n beams, or best_of, and draws nothing."""
    field = "best_of" if "best_of" in fields else "n"
    if fields.get("do_sample") is True:
        draft.row_errors.append("body.do_sample=true: contradicts body.use_beam_search")
    if "num_beams" not in fields:
        if fields.get(field, 1) == 1:
            draft.row_errors.append(
                "body.use_beam_search=true: needs n or best_of above 1: how many beams there are"
            )
            return
        take(draft, "num_beams", fields[field], field)
    draft.decoding |= {"do_sample": False, "best_of": None}


def _read_logprobs(fields: Mapping[str, Any], is_chat: bool, draft: RowDraft) -> None:
    """A completion asks with one number; a chat with a flag, and a number beside it."""
    wanted, top = fields.get("logprobs"), fields.get("top_logprobs")
    if not is_chat:
        if wanted is not None:
            take(draft, "logprobs", wanted, "logprobs")
        if top is not None:
            draft.row_errors.append("body.top_logprobs: belongs to chats; give the number as logprobs")
    elif not isinstance(wanted, (bool, type(None))):
        draft.row_errors.append(
            f"body.logprobs={shown(wanted)}: must be true or false; top_logprobs has the number"
        )
    elif wanted:
        take(draft, "logprobs", 0 if top is None else top, "top_logprobs")
    elif top:
        draft.row_errors.append(f"body.top_logprobs={shown(top)}: has no effect without logprobs=true")
    elif wanted is False:
        draft.decoding["logprobs"] = None


def _read_ends(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """Tokens of stop_token_ids end the output beside the model's own, which are not known here."""
    own = fields.get("stop_token_ids", [])
    if flag(fields, "ignore_eos", draft):
        take(draft, "eos_token_id", own, "stop_token_ids" if own else "ignore_eos")
        if not own:  # nothing ends the output before min_tokens
            draft.decoding |= {"min_new_tokens": 0, "min_length": 0}
    elif own != []:
        draft.row_errors.append(
            f"body.stop_token_ids={shown(own)}: needs ignore_eos=true; list the model's own end tokens too"
        )


def _read_constraints(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """Reads the constraint on the output: at most one, which replaces the run's."""
    constraints = {
        f"body.{field}": (name, fields[field]) for field, name in _GUIDED.items() if field in fields
    }
    if "response_format" in fields:
        constraints["body.response_format"] = ("format", fields["response_format"])
    if "structured_outputs" in fields:
        constraints |= _structures(fields["structured_outputs"], draft)
    if len(constraints) > 1:
        draft.row_errors.append(f"{', '.join(constraints)}: only one of these can be given")
        return
    for where, (name, value) in constraints.items():
        parameter = "regex" if name in ("regex", "choice") else "json_schema"
        draft.shown_as[parameter] = where
        source = _READERS[name](value, where, draft) if name in _READERS else value
        draft.decoding |= {"regex": None, "json_schema": None, parameter: source}


def _structures(form: Any, draft: RowDraft) -> dict[str, tuple[str, Any]]:
    """Returns the constraints in vLLM's structured_outputs by their dotted names."""
    where = "body.structured_outputs"
    if not isinstance(form, Mapping):
        draft.row_errors.append(f"{where}={shown(form)}: must be a mapping with {_either(_STRUCTURES)}")
        return {}
    values = {name: value for name, value in form.items() if value is not None and value is not False}
    unknown = [name for name in values if name not in (*_STRUCTURES, "disable_fallback")]
    draft.row_errors += [
        f"{where}.{name}={shown(values[name])}: not supported; use {_either(_STRUCTURES)}" for name in unknown
    ]
    constraints = {f"{where}.{name}": (name, values[name]) for name in _STRUCTURES if name in values}
    if not constraints and not unknown:
        draft.row_errors.append(f"{where}={shown(form)}: needs {_either(_STRUCTURES)}")
    return constraints


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _one_of(choices: Any, where: str, draft: RowDraft) -> str | None:
    """Returns the regular expression that matches one of several texts."""
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(text, str) and text for text in choices)
    ):
        draft.row_errors.append(f"{where}={shown(choices)}: must be a list of texts, none of them empty")
        return None
    return "|".join(map(re.escape, choices))


def _any_object(value: Any, where: str, draft: RowDraft) -> Any:
    if value is not True:
        draft.row_errors.append(f"{where}={shown(value)}: must be true or false")
    return _FORMATS["json_object"]


def _schema_of(form: Any, where: str, draft: RowDraft) -> Any:
    """Returns the schema of a response_format; None for any text."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if not isinstance(kind, str) or kind not in _FORMATS or form.keys() - {"type", kind}:
        allowed = (
            "must be {type: text}, {type: json_object} or {type: json_schema, json_schema: {schema: ...}}"
        )
        draft.row_errors.append(f"{where}={shown(form)}: {allowed}")
        return None
    if kind != "json_schema":
        return _FORMATS[kind]
    schema_form = form.get("json_schema")
    if (
        not isinstance(schema_form, Mapping)
        or "schema" not in schema_form
        or schema_form.keys() - _SCHEMA_FIELDS
    ):
        allowed = "must be a mapping with schema, and name, description and strict if need be"
        draft.row_errors.append(f"{where}.json_schema={shown(schema_form)}: {allowed}")
        return None
    return schema_form["schema"]


_READERS: dict[str, Callable[[Any, str, RowDraft], Any]] = {
    "choice": _one_of,
    "json_object": _any_object,
    "format": _schema_of,
}
"""Of constraints that stand for another one."""
