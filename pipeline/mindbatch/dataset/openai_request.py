"""Owns the request lines of OpenAI's batch files: what each field means here, and which have no place.

The format is that of OpenAI's Batch API, with the decoding parameters that vLLM's run-batch adds to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindbatch.config.suggest import did_you_mean, nearest
from mindbatch.data.messages import shown, text_fault
from mindbatch.data.prompt_content import conversation_of
from mindbatch.dataset.column_rows import key_fault, refuse_idle_system, text_or_ids
from mindbatch.dataset.columns import ColumnError
from mindbatch.dataset.draft import RowDraft
from mindbatch.dataset.records import Record
from mindbatch.errors import PromptError

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_LINE = ("custom_id", "method", "url", "body")
_PROMPTS = {CHAT: "messages", COMPLETION: "prompt"}

_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "n": "num_return_sequences",
    "seed": "seed",
    "stop": "stop",
    "skip_special_tokens": "skip_special_tokens",
}
"""Fields that are decoding parameters under another name."""
_TRANSLATED = ("logprobs", "top_logprobs", "ignore_eos", "model")
_WITHOUT_EFFECT = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier")
"""What concerns OpenAI's service only."""
_ONE_VALUE: dict[str, Any] = {
    "stream": False,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "response_format": {"type": "text"},
    "logit_bias": {},
    "tools": [],
    "tool_choice": "none",
    "modalities": ["text"],
    "best_of": 1,
    "suffix": "",
    "echo": False,
    "use_beam_search": False,
    "length_penalty": 1,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
}
"""Fields that are known, and the one value with which leaving them out changes nothing."""
_NEUTRAL = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "num_return_sequences": 1}
"""Any other value asks for sampling, which is what OpenAI does unless the temperature is 0."""


class OpenAIRequests:
    """Reads requests; `system` is put before the messages of each chat."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system

    def read(self, position: int, record: Record, draft: RowDraft) -> None:
        """Fills in the draft of one request line, whatever its position: `custom_id` is its key."""
        columns = record.columns or {}
        if not _id_fault(key := columns.get("custom_id")):
            draft.key = key
        url, body = columns.get("url"), columns.get("body")
        draft.row_faults += _line_faults(columns)
        if not isinstance(body, Mapping):
            return
        draft.extra = {"endpoint": url, "model": body.get("model")}
        endpoint = url if url in (CHAT, COMPLETION) else CHAT if "messages" in body else COMPLETION
        draft.row_faults += _body_faults(body, endpoint)
        _read_parameters(body, endpoint, draft)
        try:
            draft.content = self._content(body, endpoint)
        except ColumnError as error:
            draft.row_faults += error.faults
        except PromptError as error:
            draft.prompt_faults += error.faults

    def _content(self, body: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
        name = _PROMPTS[endpoint]
        if name not in body:
            raise ColumnError(f"body.{name}: missing; {endpoint} needs it")
        if endpoint == CHAT:
            return conversation_of(body[name], f"body.{name}", self._system)
        _refuse_several(body[name])
        content = text_or_ids(body[name], f"body.{name}")
        refuse_idle_system(content, self._system)
        return content


def _refuse_several(prompt: object) -> None:
    """OpenAI's prompt may hold several; a result line has room for one."""
    if isinstance(prompt, list) and any(isinstance(item, (str, list, Mapping)) for item in prompt):
        raise PromptError(f"body.prompt={shown(prompt)}: must be one text or one list of token ids")


def _line_faults(columns: Mapping[str, Any]) -> list[str]:
    faults = [f"{name}: missing; a request needs {', '.join(_LINE)}" for name in _LINE if name not in columns]
    faults += [
        f"{name}: unknown{did_you_mean(nearest(name, _LINE))}" for name in columns if name not in _LINE
    ]
    if "custom_id" in columns and (fault := _id_fault(columns["custom_id"])):
        faults.append(f"custom_id{fault}")
    if "method" in columns and columns["method"] != "POST":
        faults.append(f"method={shown(columns['method'])}: must be POST")
    if "url" in columns and columns["url"] not in (CHAT, COMPLETION):
        near = nearest(columns["url"], _PROMPTS) if isinstance(columns["url"], str) else None
        allowed = f"must be {CHAT} or {COMPLETION}{did_you_mean(near)}"
        faults.append(f"url={shown(columns['url'])}: {allowed}")
    if "body" in columns and not isinstance(columns["body"], Mapping):
        faults.append(f"body={shown(columns['body'])}: must be a mapping with the fields of the request")
    return faults


def _id_fault(value: object) -> str | None:
    return key_fault(value) if isinstance(value, str) else f"={shown(value)}: must be a text"


def _body_faults(body: Mapping[str, Any], endpoint: str) -> list[str]:
    known = {*_PARAMETERS, *_TRANSLATED, *_WITHOUT_EFFECT, _PROMPTS[endpoint]}
    faults = []
    for name, value in body.items():
        if name in known or (name in _ONE_VALUE and value in (None, _ONE_VALUE[name])):
            continue
        if name in _ONE_VALUE:
            faults.append(f"body.{name}={shown(value)}: not supported; leave it out")
        else:
            faults.append(f"body.{name}: unknown{did_you_mean(nearest(name, known))}")
    model = body.get("model", "")
    if not isinstance(model, (str, type(None))):
        faults.append(f"body.model={shown(model)}: must be a text")
    elif fault := text_fault(model or ""):
        faults.append(f"body.model: {fault}")
    return faults


def _read_parameters(body: Mapping[str, Any], endpoint: str, draft: RowDraft) -> None:
    """Everything of the body that is a decoding parameter; null is what OpenAI takes for left out."""
    for name, parameter in _PARAMETERS.items():
        if (value := body.get(name)) is None:
            continue
        if draft.decoding.get(parameter, value) != value:
            draft.row_faults.append(f"body.{name}={shown(value)}: contradicts {draft.shown_as[parameter]}")
        draft.decoding[parameter] = 0 if (name, value) == ("top_k", -1) else value
        draft.shown_as[parameter] = f"body.{name}"
    _read_logprobs(body, endpoint, draft)
    _read_ignore_eos(body, draft)
    if any(draft.decoding.get(name, neutral) != neutral for name, neutral in _NEUTRAL.items()):
        draft.decoding["do_sample"] = True


def _read_logprobs(body: Mapping[str, Any], endpoint: str, draft: RowDraft) -> None:
    """A completion asks with one number; a chat with a flag, and a number beside it."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if endpoint == COMPLETION:
        if wanted is not None:
            draft.decoding["logprobs"], draft.shown_as["logprobs"] = wanted, "body.logprobs"
        if top is not None:
            draft.row_faults.append("body.top_logprobs: belongs to chats; give the number as logprobs")
    elif not isinstance(wanted, (bool, type(None))):
        draft.row_faults.append(
            f"body.logprobs={shown(wanted)}: must be true or false; top_logprobs has the number"
        )
    elif wanted:
        draft.decoding["logprobs"] = 0 if top is None else top
        draft.shown_as["logprobs"] = "body.top_logprobs"
    elif top:
        draft.row_faults.append(f"body.top_logprobs={shown(top)}: has no effect without logprobs=true")
    elif wanted is False:
        draft.decoding["logprobs"] = None


def _read_ignore_eos(body: Mapping[str, Any], draft: RowDraft) -> None:
    wanted = body.get("ignore_eos")
    if wanted is True:
        draft.decoding["eos_token_id"], draft.shown_as["eos_token_id"] = [], "body.ignore_eos"
    elif wanted not in (None, False):
        draft.row_faults.append(f"body.ignore_eos={shown(wanted)}: must be true or false")
