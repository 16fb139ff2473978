"""The environment of the processes that MindSpore's parallel compiler runs in, without an accelerator."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

# A user's cluster or device: nothing of it may reach the pretended one.
_DROPPED_PREFIXES = ("MS_", "RANK_", "OMPI_", "PMIX_", "PMI_")
_DROPPED = {"DEVICE_ID", "DEVICE_NUM", "MINDSPORE_HCCL_CONFIG_PATH", "HELP_CLUSTER", "CUDA_VISIBLE_DEVICES"}
SCHEDULER, WORKER = "MS_SCHED", "MS_WORKER"
_HOST = "127.0.0.1"


def plugin_environment(
    cuda_home: Path, libraries: Sequence[Path], scratch: Path, *, verbose: bool
) -> dict[str, str]:
    """This process's variables as a child needs them that loads MindSpore's GPU plugin.

    cuda_home: its bin/ and lib64/ go before all others. libraries: more folders with libraries.
    scratch: takes the logs of MindSpore and MindFormers and what a failed compilation leaves.
    """
    kept = {name: text for name, text in os.environ.items() if not _is_dropped(name)}
    folders = [cuda_home / "lib64", *libraries]
    return kept | {
        "CUDA_HOME": str(cuda_home),
        "PATH": _before(cuda_home / "bin", kept, "PATH"),
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, folders), *_given(kept, "LD_LIBRARY_PATH")]),
        "GLOG_v": "2" if verbose else "3",
        "LOG_MF_PATH": str(scratch / "logs"),
        "MS_OM_PATH": str(scratch / "logs"),
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        "HF_HUB_OFFLINE": "1",
    }


def enter_cluster(role: str, rank: int, num_ranks: int, port: int) -> None:
    """Says to MindSpore which process of the cluster this one is, before it is initialised."""
    os.environ.update(
        MS_ROLE=role,
        MS_NODE_ID=str(rank),
        MS_WORKER_NUM=str(num_ranks),
        MS_SCHED_HOST=_HOST,
        MS_SCHED_PORT=str(port),
    )


def _is_dropped(name: str) -> bool:
    return name in _DROPPED or name.startswith(_DROPPED_PREFIXES)


def _before(folder: Path, variables: Mapping[str, str], name: str) -> str:
    return os.pathsep.join([str(folder), *_given(variables, name)])


def _given(variables: Mapping[str, str], name: str) -> list[str]:
    """Empty entries would mean the current folder."""
    return [entry for entry in variables.get(name, "").split(os.pathsep) if entry]
