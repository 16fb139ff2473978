"""Admission of processes to a job: equal versions and folders, enough memory; and what each is told."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.digests import folder_digest
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.machine import MachineMemory
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.io.errors import CheckpointError, MindBatchError
from mindbatch.replicas.messages import versions


class RankAdmission:
    """Compares what ranks say of themselves with this process."""

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

        has_worlds: they form a MindSpore world.
        check_memory: raises ConfigError where ranks need more than the machine has on which they are.
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
        self._versions = versions()
        self._folders = compared_folders(model, lora)
        self._digests = [folder_digest(folder) for folder in self._folders]
        self._hosts: dict[int, str] = {}
        self._machines: dict[int, str] = {}
        self._check_memory = check_memory

    def job(self, rank: int, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Admits the rank that has said hello, and returns what it is told.

        Raises:
            MindBatchError: it has other versions.
            ConfigError: it needs more memory than its machine has beside those that are there already.
        """
        self._hosts[rank] = str(hello["host"])
        faults = [
            f"rank {rank} on {hello['host']}: {package} {theirs or 'is not installed'}, and here "
            f"{ours}; all hosts need the same"
            for package, ours in self._versions.items()
            if (theirs := hello["versions"].get(package)) != ours
        ]
        if faults:
            raise MindBatchError(faults)
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
            CheckpointError: they are not those of this one.
        """
        for folder, ours, theirs in zip(self._folders, self._digests, model["digests"], strict=True):
            if ours != theirs:
                raise CheckpointError(
                    f"{folder}: another one on {self._hosts[rank]} (rank {rank}) than here; every host needs "
                    "the same files"
                )


def compared_folders(model: ModelConfig, lora: LoraConfig) -> list[Path]:
    """Lists the folders that every host must have alike."""
    paths = (model.checkpoint_name_or_path, model.assistant)
    return [*(Path(path) for path in paths if path), *(folder.path for folder in lora.folders.values())]
