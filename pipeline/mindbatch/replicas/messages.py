"""Messages between coordinator and ranks: admission, requests, step results and failures."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.digests import folder_digest
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.machine import MachineMemory, lines, versions
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import PARAMETERS
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, Request, RequestOutput, StreamEvent
from mindbatch.io.errors import BackendError, CheckpointError, ConfigError, MindBatchError

COMPARED = ("mindbatch", "mindspore")
"""Packages whose versions all ranks share."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Tells this machine from others of its name; empty where the system does not say."""
    return "".join(lines(_BOOT))


HELLO, JOB, MODEL, NOTICE, READY = "hello", "job", "model", "notice", "ready"
ADD, ABORT, STEP, BEAT, FAILED = "add", "abort", "step", "beat", "failed"
PEERS = "peers"
"""Kinds. To the coordinator: HELLO of a new rank, MODEL (the digest of its folder), NOTICE, READY, STEP, BEAT
each second, FAILED. To a rank: JOB, PEERS (where the leader listens), ADD, ABORT."""

_ERRORS: dict[str, type[MindBatchError]] = {
    error.__name__: error for error in (MindBatchError, ConfigError, CheckpointError, BackendError)
}


def request_fields(request: Request) -> dict[str, Any]:
    """Packs a request; its text and source stay where they are."""
    params = {
        name: value
        for name, declared in PARAMETERS.items()
        if declared.in_config and (value := getattr(request.params, name)) != declared.default
    }
    return {
        "key": request.key,
        "prompt_token_ids": [*map(int, request.prompt_token_ids)],
        "params": params,
        "adapter": request.adapter,
        "row_key": request.row_key,
    }


def request_of(fields: Mapping[str, Any]) -> Request:
    prompt, params = tuple(fields["prompt_token_ids"]), DecodingParams(**fields["params"])
    return Request(**{**fields, "prompt_token_ids": prompt, "params": params})


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
    outputs = [vars(completion) for completion in output.outputs]
    return {**vars(output), "prompt": None, "prompt_token_ids": [], "outputs": outputs}


def _output_of(fields: Mapping[str, Any]) -> RequestOutput:
    outputs = [CompletionOutput(**completion) for completion in fields["outputs"]]
    for output in outputs:
        output.logprobs = output.logprobs and [*map(_by_token, output.logprobs)]
    scored = fields["prompt_logprobs"]
    scored = scored and [by_token and _by_token(by_token) for by_token in scored]
    return RequestOutput(**{**fields, "outputs": outputs, "prompt_logprobs": scored})


def _by_token(logprobs: Mapping[Any, float]) -> dict[int, float]:
    """By token id: JSON's keys are texts."""
    return {int(token): logprob for token, logprob in logprobs.items()}


def failure_fields(error: BaseException) -> dict[str, Any]:
    """Packs the error that ended a process, as the user is to read it."""
    if isinstance(error, MindBatchError):
        kinds: Iterable[type] = (kind for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
        return {"error": next(iter(kinds)).__name__, "lines": error.lines}
    return {"error": MindBatchError.__name__, "lines": [" ".join(repr(error).split())]}


def failure_of(fields: Mapping[str, Any]) -> MindBatchError:
    return _ERRORS.get(fields["error"], MindBatchError)(fields["lines"])


class RankAdmission:
    """Checks the versions, memory and model folders of ranks against this process."""

    def __init__(
        self,
        model: ModelConfig,
        runtime: RuntimeConfig,
        parallel: ParallelConfig,
        lora: LoraConfig | None = None,
        check_memory: Callable[[Collection[int], MachineMemory], None] = lambda ranks, machine: None,
        *,
        replicas_are_local: bool,
        has_worlds: bool,
    ) -> None:
        """`replicas_are_local`: all ranks of a replica are on one host.

        has_worlds: the ranks of a replica form a MindSpore world.
        check_memory: raises ConfigError if ranks need more memory than their machine has.
        """
        lora = lora or LoraConfig()
        self._job = {
            "replicas_are_local": replicas_are_local,
            "has_worlds": has_worlds,
            "model": dataclasses.asdict(model),
            "runtime": dataclasses.asdict(runtime),
            "parallel": dataclasses.asdict(parallel),
            "lora": dataclasses.asdict(lora),
        }
        self._versions = versions(COMPARED)
        self._folders = compared_folders(model, lora)
        self._digests = [folder_digest(folder) for folder in self._folders]
        self._hosts: dict[int, str] = {}
        self._machines: dict[int, str] = {}
        self._check_memory = check_memory

    def job(self, rank: int, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Admits a rank by its HELLO; returns the fields of its JOB.

        Raises:
            BackendError: the rank has other versions.
            ConfigError: the ranks of its machine need more memory than it has.
        """
        self._hosts[rank] = str(hello["host"])
        errors = [
            f"rank {rank} on {hello['host']}: {package} {theirs or 'is not installed'}, and here "
            f"{ours}; all hosts need the same"
            for package, ours in self._versions.items()
            if (theirs := hello["versions"].get(package)) != ours
        ]
        if errors:
            raise BackendError(errors)
        self._machines[rank] = f"{hello['host']} {hello.get('boot')}"
        if memory := hello.get("memory"):
            there = [other for other, name in self._machines.items() if name == self._machines[rank]]
            whole, free, _ = memory
            self._check_memory(there, MachineMemory(whole, free, self._hosts[rank]))
        return self._job

    def forget(self, ranks: Iterable[int]) -> None:
        """Forgets ranks that have ended, and may be started on other machines."""
        for rank in ranks:
            self._machines.pop(rank, None)

    def check_model(self, rank: int, model: Mapping[str, Any]) -> None:
        """Compares the model folders of a rank's host, and the adapters'.

        Raises:
            CheckpointError: a folder differs from the one of this host.
        """
        for folder, ours, theirs in zip(self._folders, self._digests, model["digests"], strict=True):
            if ours != theirs:
                raise CheckpointError(
                    f"{folder}: another one on {self._hosts[rank]} (rank {rank}) than here; every host needs "
                    "the same files"
                )


def compared_folders(model: ModelConfig, lora: LoraConfig) -> list[Path]:
    """Returns the folders that must be the same on every host."""
    paths = (model.checkpoint_name_or_path, model.assistant)
    return [*(Path(path) for path in paths if path), *(folder.path for folder in lora.folders.values())]
