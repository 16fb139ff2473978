"""`mindbatch serve` as its users see it: with OpenAI's own client, which judges the shape of every answer."""

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from mindbatch import LLM
from mindbatch.cli import main
from running_server import RunningServer

KEY = "a key of the tests"
CHAT = "/v1/chat/completions"
TEXT = "Hello"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<think>\nSo\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
AS_CALL = {"guided_regex": CALL.replace("{", r"\{").replace("}", r"\}"), "max_tokens": 100}


@pytest.fixture(scope="module")
def server(small_gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    running = RunningServer(
        *(f"model.checkpoint_name_or_path={small_gpt2}", "server.model_name=small"),
        *(f"server.batches_dir={folder}", "server.message_format=qwen3"),
        *(f"server.api_key={KEY}", "decoding.max_new_tokens=12", "--verbose"),
    )
    yield running
    assert running.end() == 0
    assert not [path for path in folder.rglob("*") if path.stat().st_mode & 0o077]
    assert KEY not in "".join(running.lines)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=KEY, max_retries=0)


def wait(client: openai.OpenAI, batch: Any) -> Any:
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines_of(*bodies: dict[str, Any], url: str = CHAT) -> bytes:
    rows = [
        {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}
        for number, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def begin(client: openai.OpenAI, data: bytes, endpoint: Any = CHAT, **options: Any) -> Any:
    file = client.files.create(file=("rows.jsonl", data), purpose="batch")
    options = {"completion_window": "24h"} | options
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, **options)


def test_a_chat_is_what_generate_says_whole_and_streamed(client: openai.OpenAI, small_gpt2: Path) -> None:
    whole = client.chat.completions.create(model="small", messages=MESSAGES, temperature=0)
    parts = [
        *client.chat.completions.create(
            model="small",
            messages=MESSAGES,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    with LLM(small_gpt2) as llm:
        (result,) = llm.chat(MESSAGES, max_new_tokens=12)
    assert whole.choices[0].message.content == result.outputs[0].text
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == result.outputs[0].text
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert parts[-1].usage == whole.usage
    options: Any = {"continuous_usage_stats": True}
    asked: Any = {"model": "small", "messages": MESSAGES, "temperature": 0, "stream_options": options}
    usages = [part.usage for part in client.chat.completions.create(**asked, stream=True)]
    assert [used.completion_tokens for used in usages if used] == sorted(
        used.completion_tokens for used in usages if used
    )
    assert usages[-1] == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12


def test_several_prompts_and_choices_of_a_seed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "small", "prompt": [TEXT, [5, 6, 7]], "n": 2, "temperature": 1.5, "logprobs": 1}
    first, second = (client.completions.create(**asked, seed=3) for _ in range(2))
    other, another = (client.completions.create(**asked) for _ in range(2))
    texts = [[choice.text for choice in answer.choices] for answer in (first, second, other, another)]
    assert texts[0] == texts[1]
    assert len({*map(tuple, texts)}) == 3, "draws without a seed of their own are the same"
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    streamed = ["", "", "", ""]
    logprobs: list[dict[str, list[Any]]] = [defaultdict(list) for _ in range(4)]
    for part in client.completions.create(**asked, seed=3, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.text
            assert choice.logprobs or choice.finish_reason, "a chunk tells its tokens' own"
            for name, entries in choice.logprobs or ():
                logprobs[choice.index][name] += entries
    assert streamed == texts[0]
    assert logprobs == [dict(choice.logprobs or ()) for choice in first.choices]


def test_a_chats_chunks_tell_the_log_probabilities_of_their_tokens(client: openai.OpenAI) -> None:
    asked: Any = {"model": "small", "messages": MESSAGES, "temperature": 0, "logprobs": True}
    asked["top_logprobs"] = 2
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    chunks = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]
    told = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content or ()]
    assert whole is not None
    assert told == whole.content
    assert all(chunk.logprobs for chunk in chunks if chunk.delta.content)


def test_an_echo_scores_the_prompt(client: openai.OpenAI, small_gpt2: Path) -> None:
    answer = client.completions.create(
        model="small", prompt=TEXT, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    with LLM(small_gpt2) as llm:
        (result,) = llm.generate(TEXT, max_new_tokens=1, prompt_logprobs=1, logprobs=1)
    (choice,) = answer.choices
    assert result.prompt_logprobs is not None
    expected = [
        None if likely is None else likely[token]
        for token, likely in zip(result.prompt_token_ids, result.prompt_logprobs, strict=True)
    ]
    assert choice.text == TEXT + result.outputs[0].text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[:-1] == expected


def test_embeddings_are_pooled_states_of_length_one(client: openai.OpenAI, small_gpt2: Path) -> None:
    with LLM(small_gpt2) as llm:
        results = llm.generate([TEXT, "Other", [5, 6, 7]], pooling="last")
    expected = [result.outputs[0].embedding for result in results]
    for form in ({}, {"encoding_format": "float"}):  # the client asks for base64 unless told otherwise
        asked: Any = {"model": "small", **form}
        texts = client.embeddings.create(**asked, input=[TEXT, "Other"])
        ids = client.embeddings.create(**asked, input=[5, 6, 7])
        assert [item.embedding for item in (*texts.data, *ids.data)] == expected
        assert ids.usage.prompt_tokens == 3
    batch = wait(client, begin(client, lines_of({"input": TEXT}, url="/v1/embeddings"), "/v1/embeddings"))
    line = json.loads(client.files.content(batch.output_file_id).text)
    assert line["response"]["body"]["data"][0]["embedding"] == expected[0]


def test_an_embedding_has_as_many_dimensions_as_are_asked_for(client: openai.OpenAI) -> None:
    whole = np.asarray(client.embeddings.create(model="small", input=TEXT).data[0].embedding)
    for count in (1, 3, whole.size):
        (item,) = client.embeddings.create(model="small", input=TEXT, dimensions=count).data
        first = whole[:count] / np.linalg.norm(whole[:count])
        np.testing.assert_allclose(item.embedding, first, rtol=0, atol=1e-6)
    rows = lines_of({"input": TEXT, "dimensions": 3}, url="/v1/embeddings")
    batch = wait(client, begin(client, rows, "/v1/embeddings"))
    line = json.loads(client.files.content(batch.output_file_id).text)
    (item,) = client.embeddings.create(model="small", input=TEXT, dimensions=3).data
    assert line["response"]["body"]["data"][0]["embedding"] == item.embedding
    allowed = (
        f"dimensions={whole.size + 1}: the model's embeddings have {whole.size}; allowed: 1 to {whole.size}"
    )
    with pytest.raises(openai.BadRequestError, match=allowed):
        client.embeddings.create(model="small", input=TEXT, dimensions=whole.size + 1)


OF_STRATEGIES: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "lookup": {"prompt_lookup_num_tokens": 3, "repetition_penalty": 1.3},
    "ranked": {"best_of": 3, "seed": 5, "typical_p": 0.8, "do_sample": True},
    "bans": {"no_repeat_ngram_size": 2, "bad_words_ids": [[5], [6, 7]], "encoder_repetition_penalty": 1.2},
}


def test_every_strategy_can_be_asked_for(client: openai.OpenAI, small_gpt2: Path) -> None:
    with LLM(small_gpt2) as llm:
        for asked in OF_STRATEGIES.values():
            (result,) = llm.generate(TEXT, **asked, max_new_tokens=12)
            body: Any = {"model": "small", "prompt": TEXT, "extra_body": asked}
            expected = [output.text for output in result.outputs]
            assert [choice.text for choice in client.completions.create(**body).choices] == expected
            streamed = [""] * len(expected)
            for part in client.completions.create(**body, stream=True):
                streamed[part.choices[0].index] += part.choices[0].text
            assert streamed == expected


def test_the_prompts_own_log_probabilities_are_of_one_prompt(client: openai.OpenAI) -> None:
    asked: Any = {"model": "small", "extra_body": {"prompt_logprobs": 1}}
    answer = client.completions.create(**asked, prompt=[5, 6, 7])
    assert [likely is None for likely in (answer.model_extra or {})["prompt_logprobs"]] == [
        True,
        False,
        False,
    ]
    for more in ({"prompt": [TEXT, TEXT]}, {"prompt": TEXT, "stream": True}, {"prompt": TEXT, "echo": True}):
        with pytest.raises(openai.BadRequestError, match="prompt_logprobs: needs one prompt"):
            client.completions.create(**asked, **more)


def test_scores_are_cosines_of_embeddings(client: openai.OpenAI) -> None:
    body = {"model": "small", "text_1": TEXT, "text_2": [TEXT, "Other"]}
    scores = client.post("/score", body=body, cast_to=object)["data"]  # type: ignore[index]
    same, other = (item["score"] for item in scores)
    assert same == pytest.approx(1, abs=1e-6)
    assert other < 0.999


def test_structured_output_and_stops(client: openai.OpenAI) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form: Any = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    answer = client.chat.completions.create(
        model="small", messages=MESSAGES, response_format=form, max_tokens=60, temperature=0
    )
    assert json.loads(answer.choices[0].message.content or "")["a"] in (True, False)
    limited = client.completions.create(
        model="small", prompt=TEXT, extra_body={"guided_regex": "abc-def"}, stop="-", max_tokens=30
    )
    assert (limited.choices[0].text, limited.choices[0].finish_reason) == ("abc", "stop")
    choices = ["no (a|b)", "maybe."]
    for extra in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
        chosen = client.completions.create(model="small", prompt=TEXT, extra_body=extra, max_tokens=30)
        assert chosen.choices[0].text in choices


def test_reasoning_and_calls_are_taken_out_of_the_text(client: openai.OpenAI) -> None:
    asked: Any = {"model": "small", "messages": MESSAGES, "tools": TOOLS, "extra_body": AS_CALL}
    choice = client.chat.completions.create(**asked).choices[0]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "So"
    deltas = [part.choices[0].delta for part in client.chat.completions.create(**asked, stream=True)]
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "So"
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(call.index, call.function and call.function.arguments) for call in calls] == [
        (0, choice.message.tool_calls[0].function.arguments)  # type: ignore[union-attr]
    ]
    without = client.chat.completions.create(model="small", messages=MESSAGES, extra_body=AS_CALL)
    assert (without.choices[0].message.content or "").startswith("<tool_call>"), "no tools were offered"


def test_one_call_comes_where_no_parallel_ones_are_wanted(client: openai.OpenAI) -> None:
    text = '<tool_call>{"name":"f","arguments":{"a":%d}}</tool_call>'
    extra = {"guided_regex": re.escape(text % 1 + text % 2), "max_new_tokens": 115}
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    tool: Any = {"type": "function", "strict": None, "parameters": None, "name": "f"}
    for is_parallel, expected in ((True, ['{"a": 1}', '{"a": 2}']), (False, ['{"a": 1}'])):
        asked: Any = {"model": "small", "extra_body": extra, "parallel_tool_calls": is_parallel}
        chat = {**asked, "messages": MESSAGES, "tools": tools}
        choice = client.chat.completions.create(**chat).choices[0]
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        calls: Any = choice.message.tool_calls
        assert [call.function.arguments for call in calls] == expected
        chunks = [part.choices[0] for part in client.chat.completions.create(**chat, stream=True)]
        told: Any = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
        assert [call.function.arguments for call in told] == expected
        assert chunks[-1].finish_reason == "tool_calls"
        response = client.responses.create(**asked, input="Hi", tools=[tool])
        items: Any = response.output
        assert [item.arguments for item in items] == expected
        assert response.parallel_tool_calls == is_parallel


def test_a_call_that_does_not_parse_stays_text_and_says_so(client: openai.OpenAI) -> None:
    broken = '<tool_call>\\{"name": 1\\}</tool_call>'
    message = (
        client.chat.completions.create(
            model="small",
            messages=MESSAGES,
            tools=TOOLS,
            extra_body={"guided_regex": broken, "max_tokens": 60},
        )
        .choices[0]
        .message
    )
    assert message.content == broken.replace("\\", "")
    assert message.model_extra is not None
    assert len(message.model_extra["parse_errors"]) == 1


def test_responses_go_on_and_call(client: openai.OpenAI) -> None:
    first = client.responses.create(model="small", input="Hi", instructions="Be brief", temperature=0)
    second = client.responses.create(
        model="small", input="More", previous_response_id=first.id, temperature=0, max_output_tokens=5
    )
    assert (first.status, first.incomplete_details and first.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    turns: Any = [*MESSAGES, {"role": "assistant", "content": first.output_text}]
    chat = client.chat.completions.create(
        model="small", messages=[*turns, {"role": "user", "content": "More"}], temperature=0, max_tokens=5
    )
    assert second.output_text == chat.choices[0].message.content
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None}
    extra = {"guided_regex": AS_CALL["guided_regex"]}
    asked: Any = {"model": "small", "input": "Hi", "tools": [tool], "extra_body": extra}
    events = [*client.responses.create(**asked, max_output_tokens=100, stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    last: Any = events[-1]
    whole = client.responses.create(**asked, max_output_tokens=100)
    kinds = [item.type for item in whole.output]
    assert kinds == [item.type for item in last.response.output] == ["reasoning", "function_call"]
    assert whole.output[1].arguments == '{"a": 1}'  # type: ignore[union-attr]
    answered: Any = [
        {"role": "user", "content": "Hi"},
        whole.output[1].model_dump(),
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ]
    assert client.responses.create(model="small", input=answered).output_text
    for include in (5, [{}], ["file_search_call.results"]):
        body = {"model": "small", "input": "Hi", "include": include}
        with pytest.raises(openai.BadRequestError, match="include=.*: not supported; remove it"):
            client.post("/responses", body=body, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="previous_response_id='resp_x': not known"):
        client.responses.create(model="small", input="Hi", previous_response_id="resp_x")


def test_tokens_there_and_back(server: RunningServer) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    status, answer = server.ask("POST", "/v1/tokenize", {"prompt": TEXT}, **key)
    assert status == 200
    tokens = json.loads(answer)["tokens"]
    assert json.loads(server.ask("POST", "/v1/detokenize", {"tokens": tokens}, **key)[1]) == {"prompt": TEXT}
    chat = json.loads(server.ask("POST", "/v1/tokenize", {"messages": MESSAGES}, **key)[1])
    assert chat["count"] == len(chat["tokens"]) > 5


def test_a_batch_is_the_run_of_its_file(
    client: openai.OpenAI, server: RunningServer, small_gpt2: Path, tmp_path: Path
) -> None:
    bodies = [
        {
            "messages": [{"role": "user", "content": f"Say {number}"}],
            "seed": number,
            "n": 1 + number % 2,
            "temperature": 1.1,
        }
        for number in range(40)
    ]
    data = lines_of(*bodies, {"messages": MESSAGES, "tools": TOOLS, **AS_CALL})
    batch = wait(client, begin(client, data, metadata={"for": "tests"}))
    assert (batch.status, batch.metadata) == ("completed", {"for": "tests"})
    assert (batch.request_counts.completed, batch.request_counts.failed) == (41, 0)
    assert batch.error_file_id is None
    (tmp_path / "rows.jsonl").write_bytes(data)
    words = [f"model.checkpoint_name_or_path={small_gpt2}", f"data.path={tmp_path / 'rows.jsonl'}"]
    words += [
        f"output.dir={tmp_path / 'run'}",
        "data=openai",
        "output.message_format=qwen3",
        "output.model=small",
    ]
    assert main(["batch", *words, "decoding.max_new_tokens=12", "progress=none"]) == 0
    ours = [json.loads(line) for line in (tmp_path / "run/results.jsonl").read_bytes().splitlines()]
    theirs = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    for line in (*ours, *theirs):
        line["response"]["body"].pop("created")
    assert theirs == ours
    assert theirs[-1]["response"]["body"]["choices"][0]["finish_reason"] == "tool_calls"
    assert batch.id in [one.id for one in client.batches.list()]
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert output in [*client.files.list(purpose="batch_output", limit=1)], "through all pages"
    assert client.files.delete(batch.output_file_id).deleted
    assert batch.output_file_id not in [file.id for file in client.files.list()]
    assert client.batches.retrieve(batch.id).output_file_id is None


def test_every_wrong_line_of_a_batch_is_told_with_its_number(client: openai.OpenAI) -> None:
    data = lines_of({"messages": MESSAGES}, {"messages": MESSAGES, "temprature": 1}, {"messages": []})
    data += b"{]\n" + lines_of({"prompt": TEXT}, url="/v1/completions").replace(b"row-0", b"row-9")
    batch = wait(client, begin(client, data))
    assert batch.status == "failed"
    errors = {error.line: error.message for error in batch.errors.data}
    assert [*errors] == [2, 3, 4, 5]
    assert errors[2] == "body.temprature: unknown; did you mean temperature?"
    assert errors[5] == f"url=/v1/completions: must be the batch's endpoint, {CHAT}"
    twice = wait(client, begin(client, lines_of({"messages": MESSAGES}) * 2))
    assert (twice.status, "row-0" in twice.errors.data[0].message) == ("failed", True)
    with pytest.raises(
        openai.BadRequestError, match="completion_window='soon': must be a duration such as 24h"
    ):
        begin(client, data, completion_window="soon")


def test_a_cancelled_and_an_expired_batch_keep_what_is_done(client: openai.OpenAI) -> None:
    rows = lines_of(*({"messages": MESSAGES, "max_tokens": 100, "seed": i} for i in range(3000)))
    batch = begin(client, rows)
    while client.batches.retrieve(batch.id).request_counts.completed == 0:
        time.sleep(0.02)
    client.batches.cancel(batch.id)
    expired = begin(client, rows, completion_window="1s")
    for ended, status in ((wait(client, batch), "cancelled"), (wait(client, expired), "expired")):
        assert ended.status == status
        counts = ended.request_counts
        assert (counts.total, counts.completed + counts.failed) == (3000, 3000)
        errors = client.files.content(ended.error_file_id).text.splitlines()
        assert len(errors) == counts.failed
        assert {json.loads(line)["error"]["code"] for line in errors} == {f"batch_{status}"}
    with pytest.raises(openai.ConflictError, match="has already ended"):
        client.batches.cancel(batch.id)


def test_a_call_that_is_forced_follows_the_schema_of_its_parameters(client: openai.OpenAI) -> None:
    """Of a model that would never call: the functions are of pydantic's form, with definitions."""
    number = {"$defs": {"Digit": {"enum": [3, 5]}}, "properties": {"a": {"$ref": "#/$defs/Digit"}}}
    number |= {"type": "object", "required": ["a"], "additionalProperties": False}
    word = {"type": "object", "properties": {"b": {"const": "x"}}, "required": ["b"]}
    word["additionalProperties"] = False
    functions = [{"name": "count", "parameters": number}, {"name": "say", "parameters": word}]
    tools: Any = [{"type": "function", "function": function} for function in functions]
    blanks = [client.post("/tokenize", body={"prompt": text}, cast_to=object) for text in (" ", "\n")]
    bias: Any = {str(blank["tokens"][0]): -100 for blank in blanks}  # type: ignore[index]
    asked: Any = {
        "model": "small",
        "messages": MESSAGES,
        "tools": tools,
        "max_tokens": 90,
        "logit_bias": bias,
        "parallel_tool_calls": False,
    }
    named: Any = {"type": "function", "function": {"name": "say"}}
    for choice, allowed in (
        ("required", {"count": ({"a": 3}, {"a": 5}), "say": ({"b": "x"},)}),
        (named, {"say": ({"b": "x"},)}),
    ):
        answer = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")
        call: Any
        (call,) = answer.message.tool_calls or ()
        assert json.loads(call.function.arguments) in allowed[call.function.name]
        stream = client.chat.completions.create(**asked, tool_choice=choice, stream=True)
        told: Any
        (told,) = [part for chunk in stream for part in chunk.choices[0].delta.tool_calls or ()]
        assert (told.function.name, told.function.arguments) == (call.function.name, call.function.arguments)
    tool: Any = [{"type": "function", "strict": None, **function} for function in functions]
    (item,) = client.responses.create(
        model="small",
        input="Hi",
        tools=tool,
        tool_choice={"type": "function", "name": "say"},
        max_output_tokens=90,
        extra_body={"logit_bias": bias},
    ).output
    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "say", {"b": "x"})


def test_what_is_not_there_or_not_known_is_refused_by_name(
    client: openai.OpenAI, server: RunningServer
) -> None:
    with pytest.raises(openai.NotFoundError, match="model='smal': not served here; allowed: small"):
        client.completions.create(model="smal", prompt=TEXT)
    with pytest.raises(
        openai.BadRequestError, match="temprature: unknown; did you mean temperature.*n=0"
    ) as wrong:
        client.completions.create(model="small", prompt=TEXT, n=0, extra_body={"temprature": 1})
    assert "body." not in str(wrong.value)
    with pytest.raises(openai.BadRequestError, match="n=200: at most 16"):
        client.completions.create(model="small", prompt=TEXT, n=200)
    with pytest.raises(openai.BadRequestError, match="tool_choice='required': needs a function of the tools"):
        client.chat.completions.create(model="small", messages=MESSAGES, tool_choice="required")
    with pytest.raises(openai.NotFoundError, match="file 'file-x': does not exist"):
        client.files.content("file-x")
    with pytest.raises(openai.BadRequestError, match="purpose='assistants': must be batch"):
        client.files.create(file=("a", b"b"), purpose="assistants")
    with pytest.raises(openai.NotFoundError, match="no such route"):
        client.images.generate(prompt="a")
    wrong_key = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="other", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
        wrong_key.models.list()
    assert [server.ask("GET", path)[0] for path in ("/health", "/ready", "/metrics", "/")] == [
        200,
        401,
        401,
        401,
    ]


def test_the_log_has_a_line_for_each_request(client: openai.OpenAI, server: RunningServer) -> None:
    asked: Any = {"model": "small", "prompt": [5, 6, 7], "max_tokens": 4}
    whole = client.completions.with_raw_response.create(**asked)
    streamed = client.completions.with_raw_response.create(**asked, stream=True)
    assert [*streamed.parse()]
    wrong, _ = server.ask("POST", "/v1/completions%1B[2J?a=secret", {"prompt": "private"})
    assert wrong == 401
    for answer in (whole, streamed):
        (line,) = lines_with(server, answer.headers["x-request-id"])
        pattern = (
            r"mindbatch: POST /v1/completions \(\w+, \d+\.\d{3} s\): 200, 3 prompt tokens, 4 generated\n"
        )
        assert re.fullmatch(pattern, line)
    (refused,) = lines_with(server, "[2J")
    assert re.fullmatch(r"mindbatch: POST /v1/completions\\\w+\[2J \(\w+, \S+ s\): 401\n", refused)
    assert not lines_with(server, "private", "secret", seconds=0)


def lines_with(server: RunningServer, *texts: str, seconds: float = 5) -> list[str]:
    """Lines of the log with one of the texts; waits for the first."""
    end = time.monotonic() + seconds
    while not (found := [line for line in server.lines if any(text in line for text in texts)]):
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return found


def test_the_counts_are_prometheus_metrics(client: openai.OpenAI, server: RunningServer) -> None:
    client.completions.create(model="small", prompt=TEXT)
    status, page = server.ask("GET", "/metrics", authorization=f"Bearer {KEY}")
    counts = dict(line.rsplit(" ", 1) for line in page.decode().splitlines() if line[0] != "#")
    assert status == 200
    assert float(counts['vllm:generation_tokens_total{model_name="small"}']) >= 12
    assert float(counts['vllm:num_requests_waiting{model_name="small"}']) == 0
    assert float(counts['mindbatch:http_responses_total{route="/v1/completions",status="200"}']) >= 1
