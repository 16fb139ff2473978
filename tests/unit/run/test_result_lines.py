"""Result and error lines: every field, nothing that was not asked for, one line per row whatever its text."""

import json
from functools import partial

from mindbatch.run.result_rows import OutputOptions, error_lines, result_lines
from output_rows import AWKWARD_TEXT, failed, finished, generation, written


def lines(*rows: object, **options: object) -> list[dict[str, object]]:
    data = written(partial(result_lines, options=OutputOptions(**options)), *rows)  # type: ignore[arg-type]
    parts = data.split(b"\n")
    assert parts.pop() == b""
    return [json.loads(part) for part in parts]


def test_a_line_has_the_fields_in_order_and_no_times() -> None:
    two = finished("a", generation(0, "x"), generation(1, "yz", (1, 2, 3), finish_reason="length"))
    (line,) = lines(two)
    assert list(line) == ["key", "prompt", "generations", "prompt_tokens", "generated_tokens"]
    assert line == {
        "key": "a",
        "prompt": "in",
        "generations": [
            {"index": 0, "text": "x", "finish_reason": "stop", "tokens": 2, "cumulative_logprob": -0.1 - 0.2},
            {
                "index": 1,
                "text": "yz",
                "finish_reason": "length",
                "tokens": 3,
                "cumulative_logprob": -0.1 - 0.2,
            },
        ],
        "prompt_tokens": 3,
        "generated_tokens": 5,
    }


def test_token_ids_if_wanted_and_the_prompt_unless_not() -> None:
    (line,) = lines(finished(), prompt=False, token_ids=True)
    assert "prompt" not in line
    assert line["generations"][0]["token_ids"] == [7, 8]  # type: ignore[index]


def test_the_prompt_is_as_it_was_given() -> None:
    messages = [{"role": "user", "content": "今天"}]
    found = lines(finished(content={"messages": messages}), finished(content={"token_ids": [5, 6]}))
    assert [line["prompt"] for line in found] == [messages, [5, 6]]


def test_log_probabilities_are_the_same_fresh_and_read_back_from_json() -> None:
    fresh = [{17: -0.5, 3: -1.5}, {8: -0.25}]
    read_back = [{"17": -0.5, "3": -1.5}, {"8": -0.25}]
    first, second = (
        lines(finished("k", generation(logprobs=some), prompt_logprobs=[None, {2: -3.0}]))
        for some in (fresh, read_back)
    )
    assert first == second
    assert first[0]["generations"][0]["logprobs"] == read_back  # type: ignore[index]
    assert list(first[0]["generations"][0]["logprobs"][0]) == ["17", "3"]  # type: ignore[index]
    assert first[0]["prompt_logprobs"] == [None, {"2": -3.0}]


def test_any_text_stays_on_its_line() -> None:
    first, second = lines(finished("\u2028\n", generation(text=AWKWARD_TEXT)), finished("b"))
    assert first["key"] == "\u2028\n"
    assert first["generations"][0]["text"] == AWKWARD_TEXT  # type: ignore[index]
    assert second["key"] == "b"


def test_an_error_line_says_where_and_why() -> None:
    data = written(error_lines, failed(), failed(None, "read", "not JSON"))
    assert [json.loads(line) for line in data.splitlines()] == [
        {"key": "bad", "source": "in.jsonl", "line": 4, "stage": "row", "reason": "no column prompt"},
        {"key": None, "source": "in.jsonl", "line": 4, "stage": "read", "reason": "not JSON"},
    ]


def test_what_a_strategy_adds_is_there_only_where_it_applies() -> None:
    ranked = generation(0, score=-1.25, rank=1)
    (line,) = lines(finished("a", ranked, generation(1, drafted_tokens=8, accepted_tokens=5), generation(2)))
    first, second, third = line["generations"]  # type: ignore[misc]
    assert (first["score"], first["rank"]) == (-1.25, 1)
    assert (second["drafted_tokens"], second["accepted_tokens"]) == (8, 5)
    assert not {"score", "rank", "drafted_tokens", "accepted_tokens"} & set(third)
