"""OpenAI's output and error lines: the published shape, identifiers that never change, log-probabilities."""

import json
from functools import partial
from typing import Any

import pytest

from mindbatch.dataset.rows import RowFailure
from mindbatch.message_formats.formats import FORMATS
from mindbatch.run.openai_response import refusal_lines, response_lines
from mindbatch.run.result_rows import FinishedRow, OutputOptions
from output_rows import failed, finished, generation, written

CHAT = {"endpoint": "/v1/chat/completions", "model": "asked"}
COMPLETION = {"endpoint": "/v1/completions", "model": None}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}
BYTES = {1: b" Hi", 2: b"!", 3: "今".encode()[:2], 4: "今".encode()[2:], 5: b"!"}
OPTIONS: dict[str, Any] = {
    "fingerprint": "0123abcd",
    "created": 1700000000,
    "model": "tiny_gpt2",
    "token_bytes": lambda token_id, previous: BYTES.get(token_id),
}


def responses(*rows: FinishedRow, **options: Any) -> list[dict[str, Any]]:
    how = OutputOptions(**(OPTIONS | options))
    return [json.loads(line) for line in written(partial(response_lines, options=how), *rows).splitlines()]


def refusals(*rows: RowFailure) -> list[dict[str, Any]]:
    how = OutputOptions(**OPTIONS)
    return [json.loads(line) for line in written(partial(refusal_lines, options=how), *rows).splitlines()]


def chat(*generations: dict[str, Any], key: str = "r-1", **row: Any) -> FinishedRow:
    return finished(key, *generations, content=MESSAGES, extra=CHAT, **row)


def body(line: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = line["response"]["body"]
    return found


def test_a_chat_completion() -> None:
    (line,) = responses(chat(generation(0, "a"), generation(1, "b", (1, 2, 3), finish_reason="length")))
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert (line["custom_id"], line["error"]) == ("r-1", None)
    assert line["id"].startswith("batch_req_")
    assert line["response"]["status_code"] == 200
    assert line["response"]["request_id"].startswith("req_")
    completion = body(line)
    assert completion.pop("id").startswith("chatcmpl-")
    assert completion == {
        "object": "chat.completion",
        "created": 1700000000,
        "model": "asked",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
        "system_fingerprint": "fp_0123abcd",
    }


def test_a_text_completion() -> None:
    (line,) = responses(finished("r-2", extra=COMPLETION))
    completion = body(line)
    assert completion.pop("id").startswith("cmpl-")
    assert completion == {
        "object": "text_completion",
        "created": 1700000000,
        "model": "tiny_gpt2",
        "choices": [{"text": "out", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "system_fingerprint": "fp_0123abcd",
    }


def identifiers(line: dict[str, Any]) -> list[str]:
    return [line["id"], line["response"]["request_id"], body(line)["id"]]


def test_identifiers_differ_by_row_kind_and_run_only() -> None:
    first, second = (identifiers(line) for line in responses(chat(key="a"), chat(key="b")))
    (other_run,) = (identifiers(line) for line in responses(chat(key="a"), fingerprint="ff"))
    (again,) = (identifiers(line) for line in responses(chat(generation(0, "x"), key="a"), created=5))
    assert again == first
    suffixes = [name.rpartition("_")[2].rpartition("-")[2] for name in first + second + other_run]
    assert len(set(suffixes)) == 9


def test_what_openai_does_not_know_comes_only_when_asked_for() -> None:
    (plain,) = responses(chat())
    assert "token_ids" not in body(plain)["choices"][0]
    assert "prompt_logprobs" not in body(plain)
    (more,) = responses(chat(prompt_logprobs=[None, {2: -1.0}]), token_ids=True)
    assert body(more)["choices"][0]["token_ids"] == [7, 8]
    assert body(more)["prompt_logprobs"] == [None, {"2": -1.0}]


def test_chat_log_probabilities() -> None:
    asked = generation(token_ids=(1, 3), logprobs=[{"2": -0.5, "1": -1.0}, {"3": -0.25, "9": -2.0}])
    (line,) = responses(chat(asked, overrides={"logprobs": 1}), logprobs=None)
    assert body(line)["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": " Hi",
                "logprob": -1.0,
                "bytes": [32, 72, 105],
                "top_logprobs": [{"token": "!", "logprob": -0.5, "bytes": [33]}],
            },
            {
                "token": "\\xe4\\xbb",
                "logprob": -0.25,
                "bytes": [0xE4, 0xBB],
                "top_logprobs": [{"token": "\\xe4\\xbb", "logprob": -0.25, "bytes": [0xE4, 0xBB]}],
            },
        ],
        "refusal": None,
    }


def test_the_run_says_how_many_likely_tokens_unless_the_row_does() -> None:
    asked = generation(token_ids=(1,), logprobs=[{2: -0.5, 5: -0.75, 1: -1.0}])
    row_zero, row_silent = chat(asked, overrides={"logprobs": 0}), chat(asked)
    counts = [
        len(body(line)["choices"][0]["logprobs"]["content"][0]["top_logprobs"])
        for line in responses(row_zero, row_silent, logprobs=2)
    ]
    assert counts == [0, 2]


def test_completion_log_probabilities() -> None:
    likely = [{5: -0.5, 2: -0.75, 1: -1.0}, {3: -0.25}, {4: float("-inf")}, {9: -3.0}]
    asked = generation(token_ids=(1, 3, 4, 9), logprobs=likely)
    (line,) = responses(finished("r", asked, extra=COMPLETION, content={"text": "今天"}))
    assert body(line)["choices"][0]["logprobs"] == {
        "tokens": [" Hi", "bytes:\\xe4\\xbb", "bytes:\\x8a", "token_id:9"],
        "token_logprobs": [-1.0, -0.25, -9999.0, -3.0],
        "top_logprobs": [
            {"!": -0.5, " Hi": -1.0},
            {"bytes:\\xe4\\xbb": -0.25},
            {"bytes:\\x8a": -9999.0},
            {"token_id:9": -3.0},
        ],
        "text_offset": [2, 5, 19, 29],
    }


def test_the_first_token_stands_inside_a_text() -> None:
    seen = []

    def token_bytes(token_id: int, previous: int | None) -> bytes:
        seen.append((token_id, previous))
        return b"x"

    asked = generation(token_ids=(1, 2), logprobs=[{1: -1.0}, {3: -0.5, 2: -1.0}])
    responses(chat(asked), logprobs=1, token_bytes=token_bytes)
    assert sorted(set(seen)) == [(1, 1), (2, 1), (3, 1)]


def test_a_refused_request_has_a_response_with_an_error() -> None:
    row, prompt, own = refusals(failed(), failed("b", "prompt", "too long"), failed("c", "run", "broke"))
    assert row["custom_id"] == "bad"
    assert row["error"] is None
    assert row["response"].pop("request_id").startswith("req_")
    assert row["response"] == {
        "status_code": 400,
        "body": {
            "error": {
                "message": "in.jsonl:4: no column prompt",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request",
            }
        },
    }
    assert body(prompt)["error"]["code"] == "invalid_value"
    assert own["response"]["status_code"] == 500
    assert body(own)["error"]["type"] == "server_error"


def test_a_line_that_is_no_request_has_no_response() -> None:
    first, second = refusals(
        failed(None, "read", "not JSON"), RowFailure(None, "in.jsonl", 5, "read", "not JSON")
    )
    assert first["id"] != second["id"]
    assert (first["custom_id"], first["response"]) == (None, None)
    assert first["error"] == {"code": "invalid_line", "message": "in.jsonl:4: not JSON"}


FORCED = '{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("name", "closing"), [("qwen3", "</think>"), ("qwen3", "</think>\n\n"), ("mistral", "[/THINK]")]
)
def test_a_forced_call_stands_behind_the_reasoning_that_the_prompt_opens(name: str, closing: str) -> None:
    format = FORMATS[name]
    content = MESSAGES | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    row = finished(
        "a", generation(0, f"so\n{closing}{FORCED}"), content=content, extra={"call_is_forced": True}
    )
    opened = f"user: Hi\n{format.reasoning_opening}\n"
    (line,) = responses(row, message_format=format, prompt_end=lambda row: opened)
    (choice,) = body(line)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "so")
    assert "parse_errors" not in message
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"a": 1})


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("text", ["so it", "<think>so it"])
def test_a_message_that_ended_within_its_reasoning_says_so(text: str, forced: bool) -> None:
    extra = {"call_is_forced": True} if forced else CHAT
    for opened in ("<think>\n", "assistant\n"):
        row = finished("a", generation(0, text), content=MESSAGES, extra=extra)
        (line,) = responses(row, message_format=FORMATS["qwen3"], prompt_end=lambda row, end=opened: end)
        message = body(line)["choices"][0]["message"]
        within = opened == "<think>\n" or text != "so it"
        assert message.get("reasoning_content") == ("so it" if within else None)
        expected = ["the output ended within the reasoning, before its closing tag"] if within else None
        assert message.get("parse_errors") == expected
