"""Owns the decoding parameters of OpenAI's requests: what each field of a body means here.

Besides OpenAI's own there are those that vLLM's run-batch adds to them.
"""

from collections.abc import Mapping
from typing import Any

from mindbatch.dataset.records import RowDraft
from mindbatch.decoding.params import FILTERS
from mindbatch.decoding.params import PARAMETERS as DECODING
from mindbatch.io.fault_lines import shown

_SAME_MEANING = {field: name for name, declared in DECODING.items() for field in declared.openai}
"""Fields that are decoding parameters, many under another name."""
PARAMETERS = (
    *_SAME_MEANING,
    "logprobs",
    "top_logprobs",
    "best_of",
    "use_beam_search",
    "ignore_eos",
    "stop_token_ids",
    "response_format",
    "guided_json",
    "guided_regex",
)
_NEUTRAL = {
    "temperature": 0,
    **{name: DECODING[name].default for name in (*FILTERS, "num_return_sequences", "best_of")},
}
"""Any other value asks for sampling, which is what OpenAI does unless the temperature is 0."""
_FORMATS: dict[str, Any] = {"text": None, "json_object": {"type": "object"}, "json_schema": None}
"""By type of response_format, the schema that it stands for."""
_SCHEMA_FIELDS = {"name", "description", "schema", "strict"}
"""Fields of a format with its own schema, which the output follows strictly whether that is asked or not."""


def read_parameters(body: Mapping[str, Any], is_chat: bool, draft: RowDraft) -> None:
    """Puts every decoding parameter of `body` into `draft`; null means left out, as it does for OpenAI."""
    fields = {name: value for name, value in body.items() if value is not None}
    for name in [name for name in _SAME_MEANING if name in fields]:
        value = 0 if (name, fields[name]) == ("top_k", -1) else fields[name]
        _take(draft, _SAME_MEANING[name], value, name)
    _read_logprobs(fields, is_chat, draft)
    _read_ends(fields, draft)
    _read_constraints(fields, draft)
    if _flag(fields, "use_beam_search", draft):
        _read_beams(fields, draft)
    else:
        _read_candidates(fields, draft)


def _take(draft: RowDraft, parameter: str, value: Any, field: str) -> None:
    if draft.decoding.get(parameter, value) != value:
        draft.row_faults.append(f"body.{field}={shown(value)}: contradicts {draft.shown_as[parameter]}")
    draft.decoding[parameter] = value
    draft.shown_as[parameter] = f"body.{field}"


def _flag(fields: Mapping[str, Any], name: str, draft: RowDraft) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        draft.row_faults.append(f"body.{name}={shown(value)}: must be true or false")
    return value is True


def _read_candidates(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """Sampling, with best_of the best by log-probability per token, which 1 of 1 is not."""
    if "best_of" in fields:
        is_off = fields["best_of"] is not True and fields["best_of"] == fields.get("n", 1) == 1
        _take(draft, "best_of", None if is_off else fields["best_of"], "best_of")
    if draft.decoding.get("temperature") == 0:
        for name in FILTERS:  # OpenAI takes the likeliest tokens then, whatever else is asked for
            draft.decoding.pop(name, None)
    if any(draft.decoding.get(name, neutral) != neutral for name, neutral in _NEUTRAL.items()):
        draft.decoding["do_sample"] = True


def _read_beams(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """vLLM's beam search has n beams, or best_of, and draws nothing."""
    field = "best_of" if "best_of" in fields else "n"
    if fields.get(field, 1) == 1:
        draft.row_faults.append(
            "body.use_beam_search=true: needs n or best_of above 1: how many beams there are"
        )
        return
    _take(draft, "num_beams", fields[field], field)
    draft.decoding |= {"do_sample": False, "best_of": None}


def _read_logprobs(fields: Mapping[str, Any], is_chat: bool, draft: RowDraft) -> None:
    """A completion asks with one number; a chat with a flag, and a number beside it."""
    wanted, top = fields.get("logprobs"), fields.get("top_logprobs")
    if not is_chat:
        if wanted is not None:
            _take(draft, "logprobs", wanted, "logprobs")
        if top is not None:
            draft.row_faults.append("body.top_logprobs: belongs to chats; give the number as logprobs")
    elif not isinstance(wanted, (bool, type(None))):
        draft.row_faults.append(
            f"body.logprobs={shown(wanted)}: must be true or false; top_logprobs has the number"
        )
    elif wanted:
        _take(draft, "logprobs", 0 if top is None else top, "top_logprobs")
    elif top:
        draft.row_faults.append(f"body.top_logprobs={shown(top)}: has no effect without logprobs=true")
    elif wanted is False:
        draft.decoding["logprobs"] = None


def _read_ends(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """Tokens of stop_token_ids end the output beside the model's own, which are not known here."""
    own = fields.get("stop_token_ids", [])
    if _flag(fields, "ignore_eos", draft):
        _take(draft, "eos_token_id", own, "stop_token_ids" if own else "ignore_eos")
        if not own:  # nothing ends the output before min_tokens
            draft.decoding |= {"min_new_tokens": 0, "min_length": 0}
    elif own != []:
        draft.row_faults.append(
            f"body.stop_token_ids={shown(own)}: needs ignore_eos=true; list the model's own end tokens too"
        )


def _read_constraints(fields: Mapping[str, Any], draft: RowDraft) -> None:
    """Reads the constraint on the output: at most one of the fields, which replaces the run's."""
    constraints = [name for name in ("response_format", "guided_json", "guided_regex") if name in fields]
    if len(constraints) > 1:
        names = ", ".join(f"body.{name}" for name in constraints)
        draft.row_faults.append(f"{names}: only one of these can be given")
    elif constraints:
        [name] = constraints
        parameter = "regex" if name == "guided_regex" else "json_schema"
        value = _schema_of(fields[name], draft) if name == "response_format" else fields[name]
        draft.decoding |= {"regex": None, "json_schema": None, parameter: value}
        draft.shown_as[parameter] = f"body.{name}"


def _schema_of(form: Any, draft: RowDraft) -> Any:
    """The schema that a response_format stands for; None for any text."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if not isinstance(kind, str) or kind not in _FORMATS or form.keys() - {"type", kind}:
        allowed = (
            "must be {type: text}, {type: json_object} or {type: json_schema, json_schema: {schema: ...}}"
        )
        draft.row_faults.append(f"body.response_format={shown(form)}: {allowed}")
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
        draft.row_faults.append(f"body.response_format.json_schema={shown(schema_form)}: {allowed}")
        return None
    return schema_form["schema"]
