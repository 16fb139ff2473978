"""Reads the request lines of OpenAI's batch files: the meaning of each field, and errors of others.

The format is that of OpenAI's Batch API, with the decoding parameters of `openai_parameters`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindbatch.dataset.column_rows import key_error, refuse_idle_options, text_or_ids
from mindbatch.dataset.openai_parameters import PARAMETERS, flag, read_parameters, take
from mindbatch.dataset.records import REQUEST, ColumnError, Record, RowDraft
from mindbatch.decoding.folder_embeddings import FolderEmbeddings
from mindbatch.decoding.params import DecodingParams
from mindbatch.io.error_lines import did_you_mean, shown, unknown_adapter
from mindbatch.io.errors import PromptError
from mindbatch.io.strict_json import unicode_error
from mindbatch.message_formats.parser import MessageFormat
from mindbatch.message_formats.schema_references import SchemaReferences
from mindbatch.prompts.messages import ChatOptions, conversation_of
from mindbatch.prompts.prompts import TEMPLATE_KWARGS, TOOLS

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = {CHAT: "messages", COMPLETION: "prompt", EMBEDDINGS: "input"}
"""The endpoints, each with the field of its prompt."""

_WITHOUT_EFFECT = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier")
"""Fields that concern OpenAI's service only."""
_ONE_VALUE: dict[str, Any] = {
    "stream": False,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "suffix": "",
    "echo": False,
    "include_stop_str_in_output": False,
    "verbosity": "medium",
    "spaces_between_special_tokens": True,
    "add_generation_prompt": True,
    **dict.fromkeys(("continue_final_message", "return_token_ids", "return_tokens_as_token_ids"), False),
    **dict.fromkeys(
        ("audio", "function_call", "functions", "prediction", "stream_options", "web_search_options"), None
    ),
    **dict.fromkeys(
        ("allowed_token_ids", "bad_words", "documents", "guided_grammar", "truncate_prompt_tokens"), None
    ),
}
"""Fields that are known, and the one value with which leaving them out changes nothing."""
_OF_EMBEDDINGS = {"encoding_format": "float"}
"""Fields of embeddings, and the one value that each may have."""
_OF_CHATS = (TOOLS, TEMPLATE_KWARGS, "tool_choice", "parallel_tool_calls", "reasoning_effort")
_MAX_ERRORS = 20
_TOOL_CHOICES = (None, "none", "auto", "required")
_CALL_CHOICES = "must be auto, none, required or {type: function, function: {name: ...}}"


_OWN_POOLING = "decoding.pooling=mean, for one, embeds without it"


@dataclass(frozen=True)
class OpenAIRequests:
    """Reads requests.

    options: options of each chat; a request's own override them.
    adapters: the adapters that requests may name as their model; with adapters, a request names one of them,
        the model itself by `model_name`, or none.
    message_format: the syntax in which the model writes reasoning and tool calls; None leaves them as text.
    decoding: the run's parameters. embeddings: the settings for embeddings.
    """

    options: ChatOptions
    adapters: Collection[str]
    model_name: str | None
    message_format: MessageFormat | None
    decoding: DecodingParams
    embeddings: FolderEmbeddings

    def read(self, position: int, record: Record, draft: RowDraft) -> None:
        """Fills in the draft of one request line, whatever its position: `custom_id` is its key."""
        columns = record.columns or {}
        if not _id_error(key := columns.get("custom_id")):
            draft.key = key
        url, body = columns.get("url"), record.as_written(columns.get("body"))
        draft.row_errors += _line_errors(columns)
        if not isinstance(body, Mapping):
            return
        draft.extra = {"endpoint": url, "model": body.get("model")}
        endpoint = url if url in [*ENDPOINTS] else CHAT if "messages" in body else COMPLETION
        draft.row_errors += _body_errors(body, endpoint)
        if endpoint == EMBEDDINGS:
            self._read_embedding(body.get("dimensions"), draft)
        else:
            read_parameters(body, endpoint == CHAT, self.decoding, draft)
        if endpoint == CHAT and body.get("parallel_tool_calls") is not None:
            draft.extra["has_one_call"] = not flag(body, "parallel_tool_calls", draft)
        choice = body.get("tool_choice") if endpoint == CHAT else None
        is_forced = choice == "required" or _named_function(choice) is not None
        format = self.message_format if endpoint == CHAT else None
        if format is not None and format.needs_special_tokens:
            draft.decoding.setdefault("skip_special_tokens", False)
        self._read_adapter(body.get("model"), draft)
        try:
            draft.content = self._content(body, endpoint)
            if is_forced:
                _force_call(choice, draft)
            if format is not None and format.reasoning_closing and self._constrains(draft):
                tags = [format.reasoning_opening, format.reasoning_closing]
                draft.decoding.setdefault("reasoning_tags", tags)
        except ColumnError as error:
            draft.row_errors += error.lines
        except PromptError as error:
            draft.prompt_errors += error.lines

    def _read_embedding(self, dimensions: Any, draft: RowDraft) -> None:
        draft.decoding["pooling"] = self.embeddings.pooling
        draft.row_errors += [f"{error}; {_OWN_POOLING}" for error in self.embeddings.errors]
        if dimensions is not None:
            take(draft, "dimensions", dimensions, "dimensions")
        elif self.decoding.dimensions is not None:
            draft.decoding["dimensions"] = self.decoding.dimensions

    def _constrains(self, draft: RowDraft) -> bool:
        if "json_schema" not in draft.decoding:
            return self.decoding.regex is not None or self.decoding.json_schema is not None
        return draft.decoding["json_schema"] is not None or draft.decoding["regex"] is not None

    def _read_adapter(self, model: Any, draft: RowDraft) -> None:
        """Takes a model that is the name of an adapter for a request of that, as vLLM does."""
        if not self.adapters or not isinstance(model, str) or not model:
            return
        if model not in self.adapters and model == self.model_name:
            draft.asks_base = True
            return
        if model not in self.adapters:
            draft.row_errors.append(f"body.model: {unknown_adapter(model, self.adapters)}")
        draft.adapter = model

    def _content(self, body: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
        name = ENDPOINTS[endpoint]
        if name not in body:
            raise ColumnError(f"body.{name}: missing; {endpoint} needs it")
        if endpoint == CHAT:
            return conversation_of(body[name], f"body.{name}", self._of_request(body))
        _refuse_several(body[name], name)
        content = text_or_ids(body[name], f"body.{name}")
        if endpoint == EMBEDDINGS and "text" in content:
            content["text"] = self.embeddings.prompt + content["text"]
        refuse_idle_options(content, self.options)
        return content

    def _of_request(self, body: Mapping[str, Any]) -> ChatOptions:
        """Reads the options of this request's chat. With tool_choice none it is as if there were no tools."""
        kwargs = body.get(TEMPLATE_KWARGS)
        if (effort := body.get("reasoning_effort")) is not None and isinstance(kwargs, Mapping | None):
            kwargs = {"reasoning_effort": effort, **(kwargs or {})}  # as templates that know it call it
        options = self.options.of_row(body.get(TOOLS), kwargs, f"body.{TOOLS}", f"body.{TEMPLATE_KWARGS}")
        return replace(options, tools=None) if body.get("tool_choice") == "none" else options


def _refuse_several(prompt: object, name: str) -> None:
    """Raises PromptError for OpenAI's list of several prompts; a result line has one prompt."""
    if isinstance(prompt, list) and any(isinstance(item, (str, list, Mapping)) for item in prompt):
        raise PromptError(f"body.{name}={shown(prompt)}: must be one text or one list of token ids")


def _named_function(choice: object) -> str | None:
    """Returns the name of the function of a tool_choice; None if it has none."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _force_call(choice: object, draft: RowDraft) -> None:
    """Has the output be a call of one of the chat's functions, or of the one that is named.

    Raises:
        PromptError: there is no such function, or something else is to constrain the output.
    """
    tools = [tool.get("function") for tool in draft.content.get(TOOLS, [])]
    functions = {
        tool["name"]: tool.get("parameters") or {}
        for tool in tools
        if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)
    }
    where, name = f"body.tool_choice={shown(choice)}", _named_function(choice)
    if not functions or (name is not None and name not in functions):
        near = f"; there are {', '.join(functions)}" if functions else "; body.tools has none"
        raise PromptError(f"{where}: needs a function of the tools{near}")
    if other := draft.shown_as.get("json_schema") or draft.shown_as.get("regex"):
        raise PromptError(f"{where}, {other}: only one of these can be given")
    try:
        schema = _call_schema(functions if name is None else {name: functions[name]})
    except ValueError as error:
        raise PromptError(f"{where}: {error}") from error
    draft.decoding |= {"regex": None, "json_schema": schema}
    draft.shown_as["json_schema"] = "body.tool_choice"
    draft.extra["call_is_forced"] = True


def _call_schema(functions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of a call of one of the functions, by name, each with the schema of its
    parameters.

    Raises:
        ValueError: parameters are no schema of an object.
    """
    calls: list[dict[str, Any]] = []
    for name, parameters in functions.items():
        if not isinstance(parameters, Mapping):
            raise ValueError(f"the parameters of {name} are no JSON schema of an object")
        own = SchemaReferences(parameters).rebased(f"/anyOf/{len(calls)}/properties/arguments")
        properties = {"name": {"const": name}, "arguments": {"type": "object", **own}}
        call = {"type": "object", "properties": properties, "required": [*properties]}
        calls.append({**call, "additionalProperties": False})
    return {"anyOf": calls}


def _line_errors(columns: Mapping[str, Any]) -> list[str]:
    errors = [
        f"{name}: missing; a request needs {', '.join(REQUEST)}" for name in REQUEST if name not in columns
    ]
    errors += [f"{name}: unknown{did_you_mean(name, REQUEST)}" for name in columns if name not in REQUEST]
    if "custom_id" in columns and (error := _id_error(columns["custom_id"])):
        errors.append(f"custom_id{error}")
    if "method" in columns and columns["method"] != "POST":
        errors.append(f"method={shown(columns['method'])}: must be POST")
    if "url" in columns and columns["url"] not in [*ENDPOINTS]:
        near = did_you_mean(columns["url"], ENDPOINTS) if isinstance(columns["url"], str) else ""
        allowed = f"must be {CHAT}, {COMPLETION} or {EMBEDDINGS}{near}"
        errors.append(f"url={shown(columns['url'])}: {allowed}")
    if "body" in columns and not isinstance(columns["body"], Mapping):
        errors.append(f"body={shown(columns['body'])}: must be a mapping with the fields of the request")
    return errors


def _id_error(value: object) -> str | None:
    return key_error(value) if isinstance(value, str) else f"={shown(value)}: must be a text"


def _body_errors(body: Mapping[str, Any], endpoint: str) -> list[str]:
    known = {*_WITHOUT_EFFECT, "model", ENDPOINTS[endpoint]}
    known |= {*_OF_CHATS} if endpoint == CHAT else set()
    known |= {"dimensions"} if endpoint == EMBEDDINGS else {*PARAMETERS}
    one_value = _OF_EMBEDDINGS if endpoint == EMBEDDINGS else _ONE_VALUE
    errors: list[str] = []
    for name, value in body.items():
        if len(errors) == _MAX_ERRORS:  # near names are sought for each, which takes long
            errors.append("and perhaps more")
            break
        if name in known or (name in one_value and value in (None, one_value[name])):
            continue
        if name in one_value:
            errors.append(f"body.{name}={shown(value)}: not supported; leave it out")
        else:
            errors.append(f"body.{name}: unknown{did_you_mean(name, known)}")
    choice = body.get("tool_choice") if endpoint == CHAT else None
    if choice not in _TOOL_CHOICES and _named_function(choice) is None:
        errors.append(f"body.tool_choice={shown(choice)}: {_CALL_CHOICES}")
    model = body.get("model", "")
    if not isinstance(model, (str, type(None))):
        errors.append(f"body.model={shown(model)}: must be a text")
    elif error := unicode_error(model or ""):
        errors.append(f"body.model: {error}")
    return errors
