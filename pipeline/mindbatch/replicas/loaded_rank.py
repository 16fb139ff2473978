"""One rank's part of a model that several processes hold, and the leader's engine over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.engine import StepEngine
from mindbatch.engine.runner import StageRunner
from mindbatch.loading.build import (
    Notice,
    Runners,
    engine_of,
    load_runners,
    virtual_engines_of,
)
from mindbatch.loading.setup import EngineSetup, prepare
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.connection import MessageConnection
from mindbatch.replicas.follower import Follower
from mindbatch.replicas.leading_runner import Followers, LeadingRunner

if TYPE_CHECKING:  # MindSpore
    from mindbatch.kernels.interface import Kernels


@dataclass(frozen=True)
class LoadedRank:
    """Engine setup and runners of one loaded rank. topology: of its replica alone. rank: local to it."""

    topology: Topology
    rank: int
    setup: EngineSetup
    runners: Runners

    @property
    def is_leader(self) -> bool:
        """True if this rank runs the engine."""
        return self.rank == self.topology.leader_of(0)

    @property
    def followers(self) -> list[int]:
        """The local ranks that the leader tells its steps."""
        leader = self.topology.leader_of(0)
        return [rank for rank in self.topology.ranks_of(0) if rank != leader]

    def engine(
        self,
        connections: Mapping[int, MessageConnection],
        around: Callable[[StageRunner], StageRunner] = lambda runner: runner,
    ) -> StepEngine:
        """The leader's engine, whose steps all ranks compute.

        connections: to the followers, by local rank. around: what is put around the model's runner.
        """
        main, assistant = self._leading(connections) if connections else self.runners
        make = virtual_engines_of if self.topology.pipeline_stage > 1 else engine_of
        return make(self.setup, around(main), assistant)

    def _leading(
        self, connections: Mapping[int, MessageConnection]
    ) -> tuple[StageRunner, StageRunner | None]:
        leader, drafting = self.topology.leader_of(0), self.runners.assistant
        followers = Followers(connections, [rank for rank in self.followers if rank > leader])
        assistant = None if drafting is None else LeadingRunner(drafting, followers, number=1)
        return LeadingRunner(self.runners.model, followers), assistant

    def follower(self, leader: MessageConnection) -> Follower:
        """Builds the follower that takes its steps from the leader of the replica."""
        return Follower(leader, [runner for runner in self.runners if runner is not None])


def load_rank(
    model: ModelConfig,
    runtime: RuntimeConfig,
    topology: Topology,
    rank: int,
    notice: Notice,
    meeting: bytes | None = None,
    lora: LoraConfig | None = None,
    *,
    has_world: bool = True,
) -> LoadedRank:
    """Loads the part of a local rank; the processes of the whole replica must do so together.

    topology: of the replica alone. notice, errors: see `build.load_engine`.
    meeting: a secret of these processes alone, where all are on one host; None where they are not.
    has_world: they form a MindSpore world; without one they meet in memory only, or through MPI.
    """

    def join(kernels: Kernels) -> None:
        if has_world:
            from mindbatch.parallel.context import initialise, join_group  # MindSpore

            initialise(runtime.device_target)
            join_group(topology, rank)
        if meeting is not None or (topology.world_size > 1 and not has_world):
            notice("waiting for the other ranks")
            kernels.meet(topology, rank, meeting)
            notice("loading weights 0%")

    leads = rank == topology.leader_of(0)
    setup = prepare(model, runtime, topology.part_of(rank), lora, with_tokenizer=leads)
    return LoadedRank(topology, rank, setup, load_runners(setup, notice, join))
