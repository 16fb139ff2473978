"""Who is started where, and told what: every rank once, its scheduler with it, nothing of another world."""

from mindbatch.launch.process_plan import JobSetup, inherited, take_rank_environment
from mindbatch.parallel.topology import Topology

KEY = bytes(32)


def plan(dp: int, mp: int, pp: int = 1, local: int | None = None, *, has_schedulers: bool = True) -> JobSetup:
    topology = Topology(dp, mp, pp)
    return JobSetup(
        topology,
        local or topology.world_size,
        key=KEY,
        front=("10.0.0.1", 7000),
        has_schedulers=has_schedulers,
    )


def test_a_replica_of_one_rank_needs_no_scheduler() -> None:
    [spec] = plan(3, 1).specs(2, attempt=1, scheduler_port=0)
    assert (spec.name, spec.role, spec.replica, spec.rank) == ("rank_2", "rank", 2, 2)
    told = take_rank_environment(spec.variables)
    assert (told.front, told.key, told.rank, told.attempt) == (("10.0.0.1", 7000), KEY, 2, 1)
    assert spec.variables["DEVICE_ID"] == "2"
    assert not [name for name in spec.variables if name.startswith("MS_")]


def test_the_ranks_of_a_replica_are_a_world_of_their_own() -> None:
    scheduler, *ranks = plan(2, 2, 2, local=4).specs(1, attempt=0, scheduler_port=7100)
    assert (scheduler.name, scheduler.role, scheduler.rank) == ("scheduler_1", "scheduler", 4)
    assert scheduler.variables["MS_ROLE"] == "MS_SCHED"
    assert [spec.rank for spec in ranks] == [4, 5, 6, 7]
    for local, spec in enumerate(ranks):
        wanted = {
            "MS_ROLE": "MS_WORKER",
            "MS_SCHED_HOST": "10.0.0.1",
            "MS_SCHED_PORT": "7100",
            "MS_WORKER_NUM": "4",
            "MS_NODE_ID": str(local),
            "RANK_ID": str(local),
            "RANK_SIZE": "4",
            "DEVICE_ID": str(local),
        }
        assert {name: spec.variables[name] for name in wanted} == wanted


def test_ranks_with_a_rank_table_on_npus_have_no_dynamic_cluster() -> None:
    first, second = plan(1, 2, has_schedulers=False).specs(0, 0, 0)
    assert not [name for name in first.variables if name.startswith("MS_")]
    assert (second.variables["RANK_ID"], second.variables["RANK_SIZE"]) == ("1", "2")


def test_nodes_have_blocks_of_neighbours() -> None:
    job = JobSetup(Topology(2, 4), 2)
    assert job.num_nodes == 4
    assert [*job.ranks_of(3)] == [6, 7]


def test_what_a_launcher_has_set_is_not_handed_on() -> None:
    given = {
        "PATH": "/bin",
        "GLOG_v": "3",
        "MS_ROLE": "MS_WORKER",
        "MS_ENABLE_LCCL": "on",
        "RANK_ID": "3",
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "MINDBATCH_JOB_KEY": "ab",
        "ASCEND_HOME_PATH": "/usr/local/Ascend",
    }
    assert inherited(given) == {
        "PATH": "/bin",
        "GLOG_v": "3",
        "MS_ENABLE_LCCL": "on",
        "ASCEND_HOME_PATH": "/usr/local/Ascend",
    }
