"""Contents of a job's messages: requests, step results, statistics, and how a process fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import PARAMETERS
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput, StreamEvent
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.replicas.connection import Array


def versions() -> dict[str, str]:
    """By package; those that are not installed are left out."""
    installed = {}
    for package in ("mindbatch", "mindspore"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


HELLO, JOB, MODEL, NOTICE, READY = "hello", "job", "model", "notice", "ready"
ADD, ABORT, BEGUN, STEP, BEAT, FAILED = "add", "abort", "begun", "step", "beat", "failed"
PEERS = "peers"
"""Kinds. To the front: HELLO of a new rank, MODEL (the digest of its folder), NOTICE, READY,
BEGUN (requests that are in a step for the first time), STEP, BEAT each
second, FAILED. To a rank: JOB, PEERS (where the leader listens), ADD, ABORT."""

_ERRORS: dict[str, type[MindBatchError]] = {
    error.__name__: error for error in (MindBatchError, ConfigError, CheckpointError)
}


def request_parts(requests: Iterable[Request]) -> tuple[dict[str, Any], list[Array]]:
    """Fields and arrays of requests; their text and source stay where they are."""
    asked = [*requests]
    prompts = [np.asarray(request.prompt_token_ids, np.int64) for request in asked]
    return {"requests": [*map(_request_fields, asked)]}, prompts


def requests_of(fields: Mapping[str, Any], arrays: Sequence[Array]) -> list[Request]:
    return [
        Request(
            key=request["key"],
            prompt_token_ids=tuple(prompt.tolist()),
            params=DecodingParams(**request["params"]),
            adapter=request["adapter"],
            row_key=request["row_key"],
        )
        for request, prompt in zip(fields["requests"], arrays, strict=True)
    ]


def _request_fields(request: Request) -> dict[str, Any]:
    params = {
        name: value
        for name, declared in PARAMETERS.items()
        if declared.in_config and (value := getattr(request.params, name)) != declared.default
    }
    return {"key": request.key, "row_key": request.row_key, "adapter": request.adapter, "params": params}


def result_fields(result: StepResult) -> dict[str, Any]:
    """Packs a step's result; the prompts of its outputs are left out."""
    return {
        "events": [
            (event.key, event.index, event.text, event.token_ids, event.finish_reason, event.logprobs)
            for event in result.events
        ],
        "finished": [_output_fields(output) for output in result.finished],
    }


def result_of(fields: Mapping[str, Any]) -> StepResult:
    """Unpacks a step's result; each output's prompt is missing."""
    events = [
        StreamEvent(key, index, text, tuple(token_ids), reason, logprobs and tuple(map(_by_token, logprobs)))
        for key, index, text, token_ids, reason, logprobs in fields["events"]
    ]
    return StepResult(events, [_output_of(output) for output in fields["finished"]])


def _output_fields(output: RequestOutput) -> dict[str, Any]:
    return {
        "key": output.key,
        "outputs": [vars(completion) for completion in output.outputs],
        "prompt_logprobs": output.prompt_logprobs,
        "error": output.error,
        "num_cached_tokens": output.num_cached_tokens,
    }


def _output_of(fields: Mapping[str, Any]) -> RequestOutput:
    outputs = []
    for completion in fields["outputs"]:
        output = CompletionOutput(**completion)
        output.logprobs = (
            None if output.logprobs is None else [_by_token(logprobs) for logprobs in output.logprobs]
        )
        outputs.append(output)
    scored = fields["prompt_logprobs"]
    return RequestOutput(
        key=fields["key"],
        prompt=None,
        prompt_token_ids=[],
        outputs=outputs,
        prompt_logprobs=None if scored is None else [by_token and _by_token(by_token) for by_token in scored],
        error=fields["error"],
        num_cached_tokens=fields["num_cached_tokens"],
    )


def _by_token(logprobs: Mapping[Any, float]) -> dict[int, float]:
    """By token id: JSON's keys are texts."""
    return {int(token): logprob for token, logprob in logprobs.items()}


def statistics_fields(statistics: EngineStatistics) -> dict[str, Any]:
    """The counts of an engine."""
    return dataclasses.asdict(statistics)


def statistics_of(fields: Mapping[str, Any]) -> EngineStatistics:
    """The counts of an engine."""
    return EngineStatistics(**fields)


def failure_fields(error: BaseException) -> dict[str, Any]:
    """Packs the error that ended a process, as the user is to read it."""
    if isinstance(error, MindBatchError):
        kinds: Iterable[type] = (kind for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
        return {"error": next(iter(kinds)).__name__, "faults": error.faults}
    return {"error": MindBatchError.__name__, "faults": [" ".join(repr(error).split())]}


def failure_of(fields: Mapping[str, Any]) -> MindBatchError:
    """The error to raise for it."""
    return _ERRORS.get(fields["error"], MindBatchError)(fields["faults"])
