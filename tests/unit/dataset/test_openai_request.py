"""Request lines of OpenAI's batch files: every field has an effect, or the row is refused for it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mindbatch.dataset.column_rows import PARAMETERS as OWN_NAMES
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import FolderEmbeddings
from mindbatch.decoding.params import PARAMETERS as DECODING
from mindbatch.message_formats.formats import FORMATS

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HI = {"role": "user", "content": "hi"}


TOOL = {"type": "function", "function": {"name": "f"}}


def line(url: str = CHAT, **body: Any) -> dict[str, Any]:
    given = {"messages": [HI]} if url == CHAT else {"prompt": "hi"}
    return {"custom_id": "r-1", "method": "POST", "url": url, "body": given | body}


def made(
    columns: dict[str, Any], base: DecodingParams | None = None, format: str | None = None, **data: Any
) -> DataRow | RowFailure:
    message_format = None if format is None else FORMATS[format]
    maker = RowMaker(DataConfig(**data), base or DecodingParams(), True, message_format=message_format)
    return maker.make(7, Record("requests.jsonl", 3, columns))


def row(
    columns: dict[str, Any], base: DecodingParams | None = None, format: str | None = None, **data: Any
) -> DataRow:
    item = made(columns, base, format, **data)
    assert isinstance(item, DataRow), item
    return item


def reason(columns: dict[str, Any], base: DecodingParams | None = None) -> str:
    item = made(columns, base)
    assert isinstance(item, RowFailure), item
    return item.reason


EMBEDDED = {"custom_id": "r-1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hi"}}


def test_embeddings_are_made_as_the_folder_of_the_model_says() -> None:
    def item(folder: FolderEmbeddings, own: str | None = None) -> tuple[Any, list[str]]:
        maker = RowMaker(DataConfig(), DecodingParams(pooling=own), True, embeddings=folder)
        assert maker.notes() == []
        return maker.make(0, Record("requests.jsonl", 1, EMBEDDED)), maker.notes()

    folder = FolderEmbeddings("mean", "query: ", "1_Pooling/config.json")
    made, [note] = item(folder)
    assert (made.overrides["pooling"], made.content) == ("mean", {"text": "query: hi"})
    assert note == "1_Pooling/config.json: embeddings have pooling=mean, each text behind 'query: '"
    made, [note] = item(folder, "max")
    assert (made.overrides["pooling"], made.content) == ("max", {"text": "query: hi"})
    assert "decoding.pooling=max overrides it" in note
    made, notes = item(replace(folder, errors=("2_Dense is not computed here",)))
    assert made.reason == "2_Dense is not computed here; decoding.pooling=mean, for one, embeds without it"
    assert (item(FolderEmbeddings())[0].overrides["pooling"], notes) == ("last", [])


def test_tools_and_variables_of_the_template():
    own = {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}
    item = row(line(**own, chat_template_kwargs={"a": 1}), chat_template_kwargs={"a": 0, "b": 2})
    assert (item.prompt().tools, item.prompt().chat_template_kwargs) == ([TOOL], {"a": 1, "b": 2})
    assert row(line(), tools=[TOOL]).content["tools"] == [TOOL]
    assert "tools" not in row(line(tools=[TOOL], tool_choice="none")).content
    assert "body.tools: unknown" in reason(line(COMPLETION, tools=[TOOL]))


def test_a_forced_call_follows_the_parameters_of_each_function_with_references_of_its_own():
    parameters = [
        {"properties": {"a": {"$ref": "#/$defs/A"}, "more": {"$ref": "#"}}, "$defs": {"A": {"const": number}}}
        for number in (1, 2)
    ]
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in zip("fg", parameters, strict=True)
    ]
    named = {"type": "function", "function": {"name": "g"}}
    for choice, names in (("required", "fg"), (named, "g")):
        item = row(line(tools=tools, tool_choice=choice))
        validator = Draft202012Validator(json.loads(item.overrides["json_schema"]))
        assert item.extra["call_is_forced"]
        for name, number in (("f", 1), ("g", 2)):
            right = {"name": name, "arguments": {"a": number, "more": {"a": number, "more": {}}}}
            wrong = {"name": name, "arguments": {"more": {"more": {"a": 3 - number}}}}
            assert validator.is_valid(right) is (name in names)
            assert not validator.is_valid(wrong)


def test_tool_calls_and_answers_go_to_the_template_as_they_are():
    call = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    answer = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "17"}]}
    messages = [{"role": "user", "content": "hi"}, call, answer]
    for sent in (call, {**call, "content": None, "refusal": None}):
        assert row(line(messages=[messages[0], sent, answer])).content["messages"] == messages


CONSTRAINED: dict[str, dict[str, Any]] = {
    "object": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    "regex": {"guided_regex": "a"},
    "forced": {"tools": [TOOL], "tool_choice": "required"},
    "named": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
}


@pytest.mark.parametrize("body", CONSTRAINED.values(), ids=CONSTRAINED)
def test_a_constraint_of_a_chat_knows_the_tags_of_reasoning(body: dict[str, Any]):
    tags = {"qwen3": ["<think>", "</think>"], "mistral": ["[THINK]", "[/THINK]"], "llama3": None, None: None}
    for format, expected in tags.items():
        assert row(line(**body), format=format).overrides.get("reasoning_tags") == expected


def test_without_a_constraint_there_are_no_tags_of_reasoning():
    free = {"response_format": {"type": "text"}}
    for body in ({}, free, {"tools": [TOOL]}):
        assert "reasoning_tags" not in row(line(**body), format="qwen3").overrides
    base = DecodingParams(regex="a")
    assert row(line(), base, "qwen3").overrides["reasoning_tags"] == ["<think>", "</think>"]
    assert "reasoning_tags" not in row(line(**free), base, "qwen3").overrides
    assert "reasoning_tags" not in row(line(COMPLETION), base, "qwen3").overrides


PARAMETERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "nulls": (
        dict.fromkeys(["temperature", "max_tokens", "stop", "logprobs", "n", "tools", "stream", "model"]),
        {},
    ),
    "greedy": ({"temperature": 0}, {"temperature": 0.0}),
    "greedy whatever the rest says": ({"temperature": 0, "top_p": 0.5}, {"temperature": 0.0}),
    "temperature 1 samples": ({"temperature": 1}, {"do_sample": True, "temperature": 1.0}),
    "top_p samples": ({"top_p": 0.9}, {"do_sample": True, "top_p": 0.9}),
    "top_k samples": ({"top_k": 5}, {"do_sample": True, "top_k": 5}),
    "min_p samples": ({"min_p": 0.1}, {"do_sample": True, "min_p": 0.1}),
    "several samples": ({"n": 2}, {"do_sample": True, "num_return_sequences": 2}),
    "neutral": (
        {"top_p": 1, "top_k": 0, "min_p": 0, "n": 1},
        {"min_p": 0.0, "num_return_sequences": 1, "top_k": 0, "top_p": 1.0},
    ),
    "vLLM's top_k off": ({"top_k": -1}, {"top_k": 0}),
    "max_completion_tokens": ({"max_completion_tokens": 9}, {"max_new_tokens": 9}),
    "both the same": ({"max_completion_tokens": 9, "max_tokens": 9}, {"max_new_tokens": 9}),
    "a stop": ({"stop": "x"}, {"stop": ["x"]}),
    "stops": ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
    "seed": ({"seed": 3}, {"seed": 3}),
    "vLLM's": (
        {"repetition_penalty": 1.2, "min_tokens": 2, "skip_special_tokens": False},
        {"min_new_tokens": 2, "repetition_penalty": 1.2, "skip_special_tokens": False},
    ),
    "no end before min_tokens or anywhere": (
        {"min_tokens": 2, "ignore_eos": True},
        {"eos_token_id": [], "min_length": 0, "min_new_tokens": 0},
    ),
    "other ends": (
        {"min_tokens": 2, "ignore_eos": True, "stop_token_ids": [5, 6]},
        {"eos_token_id": [5, 6], "min_new_tokens": 2},
    ),
    "penalties": (
        {"presence_penalty": 0.5, "frequency_penalty": -1},
        {"frequency_penalty": -1.0, "presence_penalty": 0.5},
    ),
    "logit_bias": ({"logit_bias": {"50256": -100, "3": 1.5}}, {"logit_bias": [[3, 1.5], [50256, -100.0]]}),
    "best of several": (
        {"best_of": 4, "n": 2, "length_penalty": 0.5},
        {"best_of": 4, "do_sample": True, "length_penalty": 0.5, "num_return_sequences": 2},
    ),
    "best of one": ({"best_of": 1, "n": 1}, {"best_of": None, "num_return_sequences": 1}),
    "beams": (
        {"use_beam_search": True, "n": 3, "length_penalty": 2, "early_stopping": True, "temperature": 0},
        {
            "best_of": None,
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 2.0,
            "num_beams": 3,
            "num_return_sequences": 3,
            "temperature": 0.0,
        },
    ),
    "more beams": (
        {"use_beam_search": True, "best_of": 4},
        {"best_of": None, "do_sample": False, "num_beams": 4},
    ),
    "no beams": ({"use_beam_search": False}, {}),
    "beams by their own name": (
        {"use_beam_search": True, "num_beams": 3, "n": 2},
        {"best_of": None, "do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    ),
    "hypotheses of a search are not sampled": (
        {"num_beams": 3, "n": 2, "temperature": 0},
        {"num_beams": 3, "num_return_sequences": 2, "temperature": 0.0},
    ),
    "beams are, where sampling is asked for": (
        {"num_beams": 3, "temperature": 0.5},
        {"do_sample": True, "num_beams": 3, "temperature": 0.5},
    ),
    "contrastive search has its own top_k": (
        {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0},
        {"penalty_alpha": 0.6, "temperature": 0.0, "top_k": 4},
    ),
    "typical_p samples": ({"typical_p": 0.9}, {"do_sample": True, "typical_p": 0.9}),
    "one of several texts": (
        {"guided_choice": ["a.b", "c|d"]},
        {"json_schema": None, "regex": "a\\.b|c\\|d"},
    ),
    "vLLM's structures": (
        {"structured_outputs": {"json": {"a": 1}, "regex": None, "json_object": False}},
        {"json_schema": '{"a":1}', "regex": None},
    ),
    "a structure of any object": (
        {"structured_outputs": {"json_object": True, "disable_fallback": True}},
        {"json_schema": '{"type":"object"}', "regex": None},
    ),
    "a structure of an expression": (
        {"structured_outputs": {"regex": "[0-9]"}},
        {"json_schema": None, "regex": "[0-9]"},
    ),
    "any text": ({"response_format": {"type": "text"}}, {"json_schema": None, "regex": None}),
    "any object": (
        {"response_format": {"type": "json_object"}},
        {"json_schema": '{"type":"object"}', "regex": None},
    ),
    "an object": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"b": {}, "a": 1}},
            }
        },
        {"json_schema": '{"b":{},"a":1}', "regex": None},
    ),
    "vLLM's regex": ({"guided_regex": "[0-9]+"}, {"json_schema": None, "regex": "[0-9]+"}),
    "vLLM's schema": ({"guided_json": '{"type": "null"}'}, {"json_schema": '{"type":"null"}', "regex": None}),
    "eos as usual": ({"ignore_eos": False}, {}),
    "logprobs": ({"logprobs": True}, {"logprobs": 0}),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
    "no logprobs": ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None}),
    "without effect": ({"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}, {}),
    "as if left out": ({"stream": False, "tools": [], "stop_token_ids": []}, {}),
    "neutral where the run may not be": (
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"frequency_penalty": 0.0, "logit_bias": [], "presence_penalty": 0.0},
    ),
}


ELSEWHERE = ("logprobs", "regex", "json_schema", "pooling", "dimensions", "prompt_logprobs_start")
"""Parameters that are asked for in other ways."""
VALUES: dict[str, Any] = {
    **dict.fromkeys(("max_length", "max_new_tokens", "forced_bos_token_id", "best_of"), 9),
    **dict.fromkeys(("forced_eos_token_id", "eos_token_id"), [9]),
    "exponential_decay_length_penalty": [3, 1.5],
    "prompt_logprobs": 1,
    "reasoning_tags": ["<t>", "</t>"],
}


@pytest.mark.parametrize("name", [name for name in OWN_NAMES if name not in ELSEWHERE])
def test_every_parameter_of_configurations_has_its_own_name(name: str):
    value = VALUES.get(name, DECODING[name].default)
    for url in (CHAT, COMPLETION):
        overrides = row(line(url, **{name: list(value) if isinstance(value, tuple) else value})).overrides
        assert DecodingParams(**overrides) == DecodingParams(
            **{name: value}, **({"do_sample": True} if name in ("best_of", "temperature") else {})
        )
    assert f"body.{name}: unknown" in reason(embedded(**{name: value}))


@pytest.mark.parametrize("name", ELSEWHERE[1:])
def test_what_is_asked_for_in_other_ways_has_no_name_of_its_own(name: str):
    assert f"body.{name}: unknown" in reason(line(**{name: 1}))


def embedded(**body: Any) -> dict[str, Any]:
    return {
        "custom_id": "e",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"input": "hi", **body},
    }


def test_the_dimensions_of_an_embedding_are_its_own_or_the_runs():
    assert row(embedded()).overrides == {"pooling": "last"}
    assert row(embedded(dimensions=3)).overrides == {"dimensions": 3, "pooling": "last"}
    base = DecodingParams(pooling="mean", dimensions=5)
    assert row(embedded(), base).overrides == {"dimensions": 5, "pooling": "mean"}
    assert row(embedded(dimensions=3), base).overrides == {"dimensions": 3, "pooling": "mean"}
    assert "body.dimensions=0: must be a whole number, at least 1" in reason(embedded(dimensions=0))
    assert "body.dimensions: unknown" in reason(line(dimensions=3))


def test_a_choice_is_one_of_its_texts_and_no_other():
    choices = ["yes", "no (a|b)", "x.y*", "[", "^$", "a\nb", "\\", "é 中", "yes please"]
    overrides = row(line(guided_choice=choices)).overrides
    assert overrides == row(line(structured_outputs={"choice": choices})).overrides
    for text in choices:
        assert re.fullmatch(overrides["regex"], text)
        assert not re.fullmatch(overrides["regex"], f"{text}!")
    assert not re.fullmatch(overrides["regex"], "xzy")


def test_that_a_chat_wants_one_call_is_known():
    assert row(line(parallel_tool_calls=False)).extra["has_one_call"] is True
    assert row(line(parallel_tool_calls=True)).extra["has_one_call"] is False
    assert "has_one_call" not in row(line(parallel_tool_calls=None)).extra
    assert "body.parallel_tool_calls=0: must be true or false" in reason(line(parallel_tool_calls=0))
    assert "body.parallel_tool_calls=false: not supported" in reason(
        line(COMPLETION, parallel_tool_calls=False)
    )


@pytest.mark.parametrize(("body", "overrides"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameters(body: dict[str, Any], overrides: dict[str, Any]):
    assert row(line(**body)).overrides == overrides


def test_a_completions_logprobs_are_a_number():
    assert row(line(COMPLETION, logprobs=3)).overrides == {"logprobs": 3}
    assert "body.top_logprobs: belongs to chats" in reason(line(COMPLETION, top_logprobs=3))
    assert "body.logprobs=true: must be a whole number" in reason(line(COMPLETION, logprobs=True))


def test_the_runs_parameters_stay_where_a_request_says_nothing():
    base = DecodingParams(do_sample=True, temperature=0.5, top_p=0.9, logprobs=2)
    params = row(line(max_tokens=3, logprobs=False), base).params(base)
    assert params == DecodingParams(do_sample=True, temperature=0.5, top_p=0.9, max_new_tokens=3)
    assert row(line(temperature=0), base).params(base).greedy


def test_a_requests_format_goes_before_the_runs():
    base = DecodingParams(regex="[a-z]+")
    assert row(line(), base).params(base).regex == "[a-z]+"
    params = row(line(response_format={"type": "json_object"}), base).params(base)
    assert (params.regex, params.json_schema) == (None, '{"type":"object"}')
    assert row(line(response_format={"type": "text"}), base).params(base) == DecodingParams()


def test_a_request_is_held_against_the_runs_strategy():
    base = DecodingParams(num_beams=4, early_stopping=True)
    assert row(line(length_penalty=2), base).params(base).length_penalty == 2
    assert "decoding.num_beams=4 cannot go with body.best_of=3" in reason(line(best_of=3), base)
    found = reason(line(n=5, use_beam_search=True, best_of=2), base)
    assert found == "body.n=5 is above body.best_of=2; must be at most that"
    assert row(line(n=2), base).params(base) == DecodingParams(
        num_beams=4, early_stopping=True, num_return_sequences=2
    )
    contrastive = DecodingParams(penalty_alpha=0.6, top_k=4)
    assert row(line(top_k=8), contrastive).params(contrastive).top_k == 8
    assert "decoding.top_k=0 cannot go with body.penalty_alpha=0.6" in reason(line(penalty_alpha=0.6))
    assert "decoding.penalty_alpha=0.6 cannot go with decoding.do_sample=true" in reason(
        line(temperature=0.7), contrastive
    )


BAD_BODY: list[tuple[dict[str, Any], str]] = [
    (
        {"do_sample": False, "temperature": 0.5},
        "body.temperature=0.5 has no effect with body.do_sample=false",
    ),
    (
        {"num_beams": 4, "penalty_alpha": 0.6, "top_k": 4},
        "body.penalty_alpha=0.6 cannot go with body.num_beams=4",
    ),
    ({"num_beams": 0}, "body.num_beams=0: must be a whole number, from 1"),
    ({"use_beam_search": True, "do_sample": True, "n": 2}, "body.do_sample=true: contradicts"),
    ({"max_new_tokens": 3, "max_tokens": 4}, "body.max_tokens=4: contradicts body.max_new_tokens"),
    ({"bad_words": ["a"]}, "body.bad_words=[a]: not supported; leave it out"),
    ({"guided_grammar": "a"}, "body.guided_grammar='a': not supported; leave it out"),
    ({"guided_choice": []}, "body.guided_choice=[]: must be a list of texts, none of them empty"),
    ({"guided_choice": ["a", ""]}, "body.guided_choice=[a, '']: must be a list of texts"),
    ({"guided_choice": "ab"}, "body.guided_choice='ab': must be a list of texts"),
    (
        {"guided_choice": ["a"], "guided_regex": "b"},
        "body.guided_regex, body.guided_choice: only one of these",
    ),
    ({"structured_outputs": "json"}, "body.structured_outputs='json': must be a mapping with json, regex"),
    ({"structured_outputs": {}}, "body.structured_outputs={}: needs json, regex, choice or json_object"),
    (
        {"structured_outputs": {"grammar": "a"}},
        "body.structured_outputs.grammar='a': not supported; use json, regex, choice or json_object",
    ),
    (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        "body.structured_outputs.json, body.structured_outputs.regex: only one of these can be given",
    ),
    (
        {"structured_outputs": {"json_object": "yes"}},
        "body.structured_outputs.json_object='yes': must be true or false",
    ),
    ({"structured_outputs": {"regex": "("}}, "body.structured_outputs.regex='(': "),
    ({"temprature": 1}, "body.temprature: unknown; did you mean temperature?"),
    ({"tools": ["f"]}, "body.tools=[f]: must be a list of JSON objects such as"),
    ({"tool_choice": "any"}, "body.tool_choice='any': must be auto, none, required or"),
    (
        {"tool_choice": "required"},
        "body.tool_choice='required': needs a function of the tools; body.tools has none",
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "needs a function of the tools; there are f",
    ),
    (
        {"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"},
        "body.tool_choice='required', body.guided_regex: only one of these can be given",
    ),
    (
        {"tools": [{"function": {"name": "f", "parameters": [1]}}], "tool_choice": "required"},
        "the parameters of f are no JSON schema of an object",
    ),
    ({"chat_template_kwargs": [1]}, "body.chat_template_kwargs=[1]: must be a mapping"),
    (
        {"chat_template_kwargs": {"messages": []}},
        "body.chat_template_kwargs.messages: not a variable of a template",
    ),
    ({"presence_penalty": 2.5}, "body.presence_penalty=2.5: must be from -2 to 2"),
    ({"logit_bias": {"x": 5}}, "body.logit_bias={x: 5}: must be a mapping from token ids"),
    ({"stream": True}, "body.stream=true: not supported"),
    ({"response_format": {"type": "xml"}}, "body.response_format={type: xml}: must be {type: text}"),
    ({"response_format": ["json"]}, "body.response_format=[json]: must be"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        "body.response_format={type: json_object, json_schema: {sche",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}},
        "body.response_format.json_schema={type: object}: must be a mapping with schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "nme": "x"}}},
        "body.response_format.json_schema={schema: {}, nme: x}: must be a mapping with schema",
    ),
    ({"guided_json": "{"}, "body.guided_json='{': not valid JSON"),
    (
        {"guided_regex": "a", "guided_json": {}},
        "body.guided_json, body.guided_regex: only one of these can be given",
    ),
    (
        {"best_of": 3, "temperature": 0},
        "body.best_of=3 has no effect with body.temperature=0.0; set body.temperature above 0 or remove it",
    ),
    ({"best_of": 2, "n": 3}, "body.n=3 is above body.best_of=2; must be at most that"),
    ({"best_of": True}, "body.best_of=true: must be a whole number, from 1"),
    ({"use_beam_search": True}, "body.use_beam_search=true: needs n or best_of above 1"),
    ({"use_beam_search": 1}, "body.use_beam_search=1: must be true or false"),
    ({"stop_token_ids": [5]}, "body.stop_token_ids=[5]: needs ignore_eos=true"),
    ({"prompt": "a"}, "body.prompt: unknown"),
    ({"model": 4}, "body.model=4: must be a text"),
    ({"model": "\ud83d"}, "body.model: is not valid Unicode"),
    ({"temperature": "hot"}, "body.temperature='hot': must be 0 (greedy) or from"),
    ({"max_tokens": 0}, "body.max_tokens=0: must be a whole number, at least 1"),
    ({"max_completion_tokens": 0}, "body.max_completion_tokens=0: must be"),
    (
        {"max_tokens": 1, "max_completion_tokens": 2},
        "body.max_completion_tokens=2: contradicts body.max_tokens",
    ),
    ({"top_p": 1.5}, "body.top_p=1.5: must be above 0 and at most 1"),
    ({"n": 2, "temperature": 0}, "body.n=2 cannot go with body.temperature=0.0"),
    ({"logprobs": 3}, "body.logprobs=3: must be true or false"),
    ({"top_logprobs": 3}, "body.top_logprobs=3: has no effect without logprobs=true"),
    ({"logprobs": True, "top_logprobs": 101}, "body.top_logprobs=101: must be"),
    ({"ignore_eos": 1}, "body.ignore_eos=1: must be true or false"),
    ({"stop": [""]}, "body.stop=['']: must be a text or a list of texts"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "body.messages[0].role='bot': must be one of"),
    ({"messages": None}, "body.messages: found null"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "body.messages[0].content[0]={type: image_url}: must be",
    ),
]


@pytest.mark.parametrize(("body", "said"), BAD_BODY)
def test_refused_bodies(body: dict[str, Any], said: str):
    found = reason(line(**body))
    assert said in found
    assert "decoding." not in found


BAD_LINES: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"custom_id": ...}, "custom_id: missing; a request needs custom_id, method, url, body"),
    "empty id": ({"custom_id": ""}, "custom_id: the key is empty"),
    "number id": ({"custom_id": 4}, "custom_id=4: must be a text"),
    "no method": ({"method": ...}, "method: missing"),
    "GET": ({"method": "GET"}, "method='GET': must be POST"),
    "no url": ({"url": ...}, "url: missing"),
    "a chat as embeddings": ({"url": "/v1/embeddings"}, "body.messages: unknown; body.input: missing"),
    "images": (
        {"url": "/v1/images"},
        "url='/v1/images': must be /v1/chat/completions, /v1/completions or /v1/embeddings",
    ),
    "misspelt url": ({"url": "/v1/chat/completion"}, "did you mean /v1/chat/completions?"),
    "url of a wrong type": ({"url": ["x"]}, "url=[x]: must be"),
    "no body": ({"body": ...}, "body: missing"),
    "body text": ({"body": "x"}, "body='x': must be a mapping"),
    "no messages": ({"body": {"model": "m"}}, "body.messages: missing; /v1/chat/completions needs it"),
    "no prompt": ({"url": COMPLETION, "body": {}}, "body.prompt: missing; /v1/completions needs it"),
    "more": ({"methud": 1}, "methud: unknown; did you mean method?"),
}


@pytest.mark.parametrize(("change", "said"), BAD_LINES.values(), ids=BAD_LINES)
def test_refused_lines(change: dict[str, Any], said: str):
    columns = {name: value for name, value in (line() | change).items() if value is not ...}
    item = made(columns)
    assert isinstance(item, RowFailure)
    assert said in item.reason
    assert item.stage == "row"
    assert item.key == (None if "custom_id" in change else "r-1")
    assert (item.source, item.line) == ("requests.jsonl", 3)


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ("", "body.prompt: the prompt is empty"),
        (["a", "b"], "body.prompt=[a, b]: must be one text or one list of token ids"),
        ([[1], [2]], "body.prompt=[[1], [2]]: must be one text or one list of token ids"),
        ([HI], "must be one text or one list of token ids"),
        ([1, -2], "body.prompt: token id -2 at position 1"),
        (None, "body.prompt: found null"),
    ],
)
def test_refused_prompts(prompt: Any, fault: str):
    assert fault in reason(line(COMPLETION, prompt=prompt))


def test_all_faults_of_a_request_at_once():
    columns = line(temprature=1, max_tokens=0, messages=[{"role": "bot", "content": "x"}])
    found = reason({**columns, "method": "GET"})
    for part in ("method='GET'", "body.temprature", "body.max_tokens=0", "body.messages[0].role"):
        assert part in found
