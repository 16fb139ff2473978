"""Starting the rank processes of a job in a Ray cluster."""

from __future__ import annotations

from pathlib import Path

from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.launch.job_ranks import JobRanks
from mindbatch.launch.process_plan import JobPlan, JobSetup
from mindbatch.launch.ray_ranks import RayRanks
from mindbatch.replicas import rank_main
from mindbatch.replicas.start import NodeSettings, local_processes


def ray_ranks(config: ModelTaskConfig, job: JobSetup, settings: NodeSettings) -> RayRanks:
    """The Ray cluster of a configuration, in which no rank is started yet. Raises what `RayRanks` raises.

    Ray counts runtime.num_threads processors for each rank, and an NPU where the model runs on one.
    """
    resources = {"CPU": float(config.runtime.num_threads or 1)}
    if config.runtime.device_target == "Ascend":
        resources["NPU"] = 1.0
    log_dir = config.launch.log_dir
    return RayRanks(
        job.ray_address,
        job.topology,
        resources,
        rank_main.main,
        settings.logs / "ray.log",
        None if log_dir is None else Path(log_dir),
    )


def start_in_ray(job: JobSetup, plan: JobPlan, settings: NodeSettings, cluster: RayRanks) -> JobRanks:
    """Starts all rank processes in the cluster, and here the schedulers that their replicas need.

    Raises:
        MindBatchError: a process cannot be started here. None is left then.
    """
    schedulers = local_processes(job, settings)
    return JobRanks(plan, [schedulers, cluster], lambda spec: 1 if spec.is_rank else 0)
