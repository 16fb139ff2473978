"""Requests and results pass through messages unchanged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput, StreamEvent
from mindbatch.io.errors import CacheBudgetError, CheckpointError, ConfigError, MindBatchError
from mindbatch.parallel.connection import decoded, encoded
from mindbatch.replicas.messages import (
    failure_fields,
    failure_of,
    request_fields,
    request_of,
    result_fields,
    result_of,
)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 1 / 3, "seed": (1 << 64) - 1},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "early_stopping": "never"},
        {"logit_bias": {5: 1.5, 2: -3.0}, "sequence_bias": [[[1, 2], 0.5]], "bad_words_ids": [[1], [2, 3]]},
        {"stop": ["\n", "é\ud800"], "eos_token_id": [], "forced_eos_token_id": 3, "max_new_tokens": 10**30},
        {"json_schema": {"type": "object", "properties": {"b": {}, "a": {}}}, "logprobs": 0},
        {"regex": r"[a-z]+\d", "exponential_decay_length_penalty": [3, 1.5], "suppress_tokens": [1, 2]},
    ],
)
def test_a_request_is_the_same_after_its_way(given: dict[str, Any]) -> None:
    request = Request("7", (1, 2, 30_000), DecodingParams(**given), row_key="a\ud800b", adapter=None)
    other = replace(request, key="other", prompt_token_ids=(3,))
    message = decoded(encoded("add", {"requests": [*map(request_fields, [request, other])]}))
    assert [*map(request_of, message.fields["requests"])] == [request, other]


def test_a_result_is_the_same_after_its_way() -> None:
    output = CompletionOutput(
        0, "text \ud800", [1, 2], "stop", -1 / 3, [{5: -0.1, 7: -np.inf}], -np.inf, 1, 3, 2
    )
    finished = [
        RequestOutput("7", None, [], [output], [None, {3: -0.25}], num_cached_tokens=16),
        RequestOutput.failed("8", "8: has no tokens"),
    ]
    scored = StreamEvent("7", 0, "x", (5,), None, ({5: -0.1, 7: -np.inf},))
    events = [StreamEvent("7", 0, "te", (1, 2)), scored, StreamEvent("7", 0, "", (), "stop")]
    result = StepResult(events, finished)
    assert result_of(decoded(encoded("step", result_fields(result))).fields) == result


@pytest.mark.parametrize("kind", [MindBatchError, ConfigError, CheckpointError])
def test_an_error_is_raised_as_it_was(kind: type[MindBatchError]) -> None:
    found = failure_of(decoded(encoded("failed", failure_fields(kind(["one", "two"])))).fields)
    assert type(found) is kind
    assert found.faults == ("one", "two")


def test_an_error_of_no_own_kind_is_one_of_its_base() -> None:
    assert type(failure_of(failure_fields(CacheBudgetError("full")))) is MindBatchError
    assert failure_of(failure_fields(RuntimeError("a\nb"))).faults == ("RuntimeError('a\\nb')",)
