"""A reshard that is planned and proved, and its outcome."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME
from mindbatch.checkpoint.formats.open_file import OpenFile, open_tensor_file
from mindbatch.checkpoint.formats.registry import WRITTEN
from mindbatch.checkpoint.formats.stored import FileLayout
from mindbatch.checkpoint.placement.plan import TensorPlan, plan_digest
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.replicas import ReplicaPair

SYNC_BYTES = 64 << 20

TargetTensor = tuple[str, str]
"""File and name of a tensor of the target."""


@dataclass(frozen=True)
class ReshardPlan:
    """A reshard that is planned and proved.

    settings: settings that are shown to the user where they differ from those of another reshard, as JSON.
    source: identity of the source, as JSON.
    tensors: copies that make each tensor of the target.
    layouts: layouts of the files of tensors, by path below the target.
    other_files: contents of the other files, by path below the target.
    replace: True to replace another reshard in the target folder.
    replicas: regions of the sources that must be equal, which are compared first.
    stamps: size and time of the files that must not change until all is read.
    sync_bytes: number of bytes about which a kill may undo.
    opened: function that opens a file of the source.
    """

    target: Path
    settings: Mapping[str, Any]
    source: Any
    tensors: tuple[TensorPlan, ...]
    layouts: Mapping[str, FileLayout]
    jobs: tuple[Job, ...]
    other_files: Mapping[str, bytes]
    workers: int = 1
    verify: bool = False
    replace: bool = False
    replicas: tuple[ReplicaPair, ...] = ()
    stamps: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    sync_bytes: int = SYNC_BYTES
    opened: OpenFile = open_tensor_file

    @cached_property
    def digest(self) -> str:
        return plan_digest(self.tensors)

    @cached_property
    def identity(self) -> str:
        """Digest of the target's content: equal for two plans that make the same files."""
        files: dict[str, Any] = {
            name: [lay.total_bytes, lay.head_digest] for name, lay in self.layouts.items()
        }
        files |= {name: hashlib.sha256(data).hexdigest() for name, data in self.other_files.items()}
        whole = json.dumps([self.settings, self.source, self.digest, files], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def sources(self) -> set[str]:
        readings = [reading for job in self.jobs for reading in job.readings.values()]
        adapters = {path for reading in readings for edit in reading.edits for path in edit.paths}
        return {*(reading.path for reading in readings), *adapters}

    @property
    def nbytes(self) -> int:
        return sum(job.nbytes for job in self.jobs)

    def by_folder(self) -> dict[Path, dict[str, FileLayout]]:
        """The layouts by folder below the target and by name in it."""
        by_folder: dict[Path, dict[str, FileLayout]] = {}
        for name, layout in self.layouts.items():
            by_folder.setdefault(Path(name).parent, {})[Path(name).name] = layout
        return by_folder

    def marker_json(self) -> bytes:
        """Builds the marker: all of this and the target's files with their sizes where those are known."""
        sizes: dict[str, int | None] = {name: layout.total_bytes for name, layout in self.layouts.items()}
        sizes |= {str(folder / DIGESTS_NAME): None for folder in self.by_folder()}
        sizes |= {name: len(data) for name, data in self.other_files.items()}
        content = {
            "identity": self.identity,
            "settings": self.settings,
            "source": self.source,
            "plan": self.digest,
            "files": sizes,
        }
        return (json.dumps(content, indent=1) + "\n").encode()


def layouts_of(
    plans: Iterable[TensorPlan], files: Sequence[str], dtypes: Mapping[str, str], kind: str
) -> dict[str, FileLayout]:
    entries: list[list[tuple[str, str, Shape]]] = [[] for _ in files]
    for plan in plans:
        entries[plan.rank].append((plan.name, dtypes[plan.name], plan.shape))
    lay_out = WRITTEN[kind].lay_out
    assert lay_out is not None
    return {file: lay_out(entries[rank]) for rank, file in enumerate(files)}


@dataclass
class Outcome:
    """Outcome of a reshard.

    is_new: False if the target already existed.
    kept: number of tensors that an earlier session had written.
    """

    is_new: bool = True
    kept: int = 0
    notes: list[str] = field(default_factory=list)
