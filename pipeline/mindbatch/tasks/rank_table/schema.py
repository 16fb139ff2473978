"""The keys of `mindbatch rank-table`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mindbatch.config.faults import shown
from mindbatch.config.path_faults import any_path, input_file_fault, output_file_fault, settled
from mindbatch.config.schema import SchemaKeys, TaskConfig, option, section, value_at

WRITE, CHECK, MERGE = "write", "check", "merge"
OF_ALL = ("action", "files", "num_ranks", "uneven", "verbose", "output.format")
TO_A_FILE = ("output.file", "output.replace")
OF_SERVERS = ("version", "servers")


@dataclass
class RankTableOutputConfig:
    """The file of the table, and what is printed."""

    file: str | None = option(
        None,
        "file to write; null: hccl_... in the current folder, named as hccl_tools.py and merge_hccl.py do",
        is_path=True,
    )
    replace: bool = option(False, "write over a file that holds something else")
    format: str = option("text", "of what is printed: text or json", choices=("text", "json"))


@dataclass
class RankTableConfig(TaskConfig):
    """The keys of `mindbatch rank-table`."""

    positional: ClassVar[tuple[str, ...]] = ("action",)
    positional_rest: ClassVar[str] = "files"

    action: str = option(
        WRITE,
        "write a table, check those in files, or merge those in files",
        choices=(WRITE, CHECK, MERGE),
    )
    files: Any = option(
        (),
        "rank tables: to check, the copies of all servers; to merge, in the order that the ranks shall have",
        accepts="list of files",
    )
    num_ranks: int | None = option(None, "ranks that a table must have; null: any number", minimum=1)
    uneven: bool = option(False, "servers may have different numbers of devices")
    verbose: bool = option(False, "show tracebacks")
    output: RankTableOutputConfig = section(RankTableOutputConfig)

    version: str = option(
        "1.0",
        "1.0: servers; 1.2: supernodes (Atlas A3), with super_device_ids",
        choices=("1.0", "1.2"),
        topic="To write a table of this server",
    )
    devices: str = option(
        "[0,8)",
        "[A,B): A to B-1; [A,B] is the same, for the end is exclusive as in run_dist_gen.sh; or a list: 0,2",
    )
    visible_devices: str | None = option(
        None, "physical ids of devices 0, 1, 2 ..., in a container: 4,5,6,7; null: the same numbers"
    )
    server_id: str | None = option(None, "name or address of this server; null: the host name's address")
    host_ip: str | None = option(None, "address of the host; HCCL needs it to run operators again")
    super_pod_id: str | None = option(None, "supernode of this server; null in version 1.2: 0")
    super_device_ids: str | None = option(
        None, "of each device its SDID, as `npu-smi info -t spod-info -i ID -c CHIP` says: 0,1,2,3"
    )
    source: str = option(
        "auto",
        "where the addresses come from; auto: hccn_tool, or else hccn_conf",
        choices=("auto", "hccn_tool", "hccn_conf"),
    )
    hccn_tool: str = option("hccn_tool", "the program: its name on the PATH, or its path")
    hccn_timeout: int = option(10, "seconds for each answer of hccn_tool", minimum=1)
    hccn_conf: str = option("/etc/hccn.conf", "the file with lines address_N=ADDRESS", is_path=True)

    servers: Any = option(
        None,
        "servers in the order of their ranks, like [{server_id: 10.0.0.1, device_ips: [10.1.0.1]}]; "
        "docs/distributed.md has all their keys",
        accepts="list of servers or null",
        topic="To write a table of servers with known addresses",
    )

    def settle_paths(self) -> list[str]:
        faults: list[str] = []
        if isinstance(self.files, list | tuple):
            fault_of = input_file_fault("a rank table")
            self.files = tuple(settled("files", str(file), fault_of, faults) for file in self.files)
        self.output.file = settled("output.file", self.output.file, output_file_fault, faults)
        if self.hccn_tool.startswith("~"):  # else it may be a name on the PATH
            self.hccn_tool = settled("hccn_tool", self.hccn_tool, any_path, faults) or self.hccn_tool
        self.hccn_conf = settled("hccn_conf", self.hccn_conf, any_path, faults) or self.hccn_conf
        return faults

    def own_faults(self, keys: SchemaKeys) -> Iterable[str]:
        if self.action not in (WRITE, CHECK, MERGE):
            return
        yield from _file_faults(self.action, self.files)
        used = {CHECK: OF_ALL, MERGE: OF_ALL + TO_A_FILE}.get(self.action, tuple(keys.keys))
        yield from _unused(self, keys, used, f"rank-table {self.action}")
        if self.action == WRITE and self.servers is not None:
            yield from _unused(
                self, keys, OF_ALL + TO_A_FILE + OF_SERVERS, "servers, which have all of their own"
            )
        if self.action == WRITE and self.servers is None and self.version == "1.0":
            for name in ("super_device_ids", "super_pod_id"):
                if getattr(self, name) is not None:
                    yield f"{name}: only in version 1.2; add version=1.2"


def _file_faults(action: str, files: Any) -> Iterator[str]:
    if not isinstance(files, list | tuple) or not all(isinstance(file, str) for file in files):
        yield f"files={shown(files)}: must be a list of files"
    elif action == WRITE and files:
        yield "files: not read to write a table; mindbatch rank-table check FILE ... or merge FILE ..."
    elif action != WRITE and not files:
        yield f"files: must be given: mindbatch rank-table {action} FILE ..."


def _unused(config: RankTableConfig, keys: SchemaKeys, used: tuple[str, ...], what: str) -> Iterator[str]:
    """An option that would be ignored is one that the user was mistaken about."""
    for name, key in keys.keys.items():
        value = value_at(config, name)
        if name not in used and value != key.default:
            yield f"{name}={shown(value)}: has no effect with {what}; remove it"
