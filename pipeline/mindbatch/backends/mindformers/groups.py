"""MindFormers' groups of ranks for tensor parallelism, of which there is one set in a process."""

from __future__ import annotations

from mindbatch.parallel.topology import TensorSlice


def enter_group(shard: TensorSlice, device_target: str) -> None:
    """Sets MindFormers' groups up; `mindspore.communication.init` has been called.

    On a CPU the group of a slice that is the whole world is MindSpore's world group: MindFormers gathers
    logits, and there is no gather in other groups.
    """
    if shard.size == 1:
        return
    from mindformers.parallel_core.inference import parallel_state
    from mindspore.communication import get_group_size

    if parallel_state.is_initialized():
        return
    size = get_group_size()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=shard.size, pipeline_model_parallel_size=size // shard.size
    )
    if device_target == "CPU" and shard.size == size:
        parallel_state._TENSOR_MODEL_PARALLEL_GROUP = parallel_state._WORLD_GROUP
