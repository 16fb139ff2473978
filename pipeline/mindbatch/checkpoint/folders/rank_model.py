"""One rank's part of a model, as `mindbatch reshard` puts it into rank folders: opened, checked and read."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, has_file
from mindbatch.checkpoint.folders.model_config import read_configs
from mindbatch.checkpoint.folders.rank_folders import rank_folders
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME, read_marker
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.float_rounding import FloatArray
from mindbatch.checkpoint.formats.read_floats import read_float32
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.errors import CheckpointError
from mindbatch.parallel.topology import TensorSlice


class RankModel:
    """An opened rank: `config`, `generation_config` (None when absent) and the rank's own tensors by name.

    Of the other ranks' files only the presence is looked at. With a digests.json each tensor is verified
    when it is first read; all that is around the tensors is verified at once. `held` is the rank's slice.
    """

    def __init__(self, path: str | os.PathLike[str], held: TensorSlice) -> None:
        """Opens rank held.rank of a folder of held.size ranks.

        Raises:
            ConfigError: `path` is not a folder.
            CheckpointError: lists what is missing or damaged, or how the folder was cut otherwise.
        """
        self.path = existing_folder(path)
        self.held = held
        faults: list[str] = []
        with collecting(faults):
            self.config, self.generation_config = read_configs(self.path)
        with ExitStack() as opened:
            with collecting(faults):
                self._source = opened.enter_context(open_source(_folder_of(self.path, held)))
                self._source.check_heads()
            raise_if_any(faults)
            opened.pop_all()
        (self._tensors,) = self._source.ranks
        self._verified: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the rank's tensors."""
        return tuple(self._tensors.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the rank's tensors as they are stored."""
        return self._tensors.nbytes

    def file_name(self, name: str) -> str:
        """The rank's file, from the model's folder on. CheckpointError when it has no such tensor."""
        return str(self._tensors.file(name).path.relative_to(self.path))

    def info(self, name: str) -> StoredTensor:
        """The tensor's entry. CheckpointError when there is none of that name."""
        return self._tensors.info(name)

    def float32(self, name: str, *, rows: slice | None = None) -> FloatArray:
        """As read_float32, verified (the whole tensor, whatever the rows)."""
        if name not in self._verified:
            self._tensors.check(name)
            self._verified.add(name)
        return read_float32(self._tensors.file(name), name, rows)

    def close(self) -> None:
        """Closes the rank's file."""
        self._source.close()

    def __enter__(self) -> RankModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _folder_of(home: Path, held: TensorSlice) -> Path:
    """The rank's folder, when all are there and were cut for so many."""
    if has_file(home, JOURNAL_NAME):
        raise CheckpointError(f"{home}: not finished ({JOURNAL_NAME} is there); run the same reshard again")
    ranks = rank_folders(home)
    if not ranks:
        raise CheckpointError(f"{home}: no rank_0, rank_1 ...; `mindbatch reshard` makes them")
    marker = read_marker(home)
    raise_if_any(_cut_faults(dict(marker.settings) if marker else {}, len(ranks), held), str(home))
    return ranks[held.rank]


def _cut_faults(settings: dict[str, Any], num_ranks: int, held: TensorSlice) -> list[str]:
    """Whether the folder was made for such ranks; without a marker the number of folders tells."""
    stages, names = settings.get("pipeline_stage", 1), settings.get("names", "hf")
    ways = settings.get("model_parallel", num_ranks)
    how = f"`mindbatch reshard ... target.model_parallel={held.size}` cuts it so"
    faults = []
    if stages != 1:
        faults.append(f"was cut for pipeline_stage={shown(stages)}; needed is pipeline_stage=1; {how}")
    if names != "hf":
        faults.append(f"has names={shown(names)}; needed are those of Hugging Face, target.names=hf")
    if ways != held.size:
        faults.append(f"was cut for model_parallel={shown(ways)}; needed is {held.size}; {how}")
    elif stages == 1 and num_ranks != held.size:
        faults.append(
            f"has {num_ranks} of the {held.size} ranks that {MARKER_NAME} speaks of; rank folders are missing"
        )
    return faults
