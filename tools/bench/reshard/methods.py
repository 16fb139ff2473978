"""Times each method of resharding or copying the checkpoint, with its peak memory."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.child_process import command

COPY = "cp, fsync"
OURS = "mindbatch reshard, safetensors"
OURS_CKPT = "mindbatch reshard, .ckpt"
MINDSPORE = "mindspore.transform_checkpoints, .ckpt"
LIMITED = (OURS, OURS_CKPT)
"""The ways that must not take long against the copy."""

DROP = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Measured:
    """seconds: of all of it; peak: bytes, None where nobody looked; inner: seconds without the start."""

    seconds: float
    peak: int | None = None
    inner: float | None = None


@dataclass(frozen=True)
class Bench:
    """The checkpoint below `folder` in both formats, the strategy file, and how it is to be cut."""

    folder: Path
    source: Path
    ckpt: Path
    strategy: Path
    nbytes: int
    num_ranks: int
    workers: int

    def methods(self) -> tuple[str, ...]:
        """In the order in which they go."""
        return tuple(self._work())

    def target(self, method: str) -> Path:
        """The folder that a way makes."""
        return self.folder / f"made{self.methods().index(method)}"

    def measured(self, method: str) -> Measured:
        """Runs one way. What it has made stays until `clear`."""
        os.sync()
        drop_cache([self.source, self.ckpt.parent])
        start = time.perf_counter()
        printed = self._work()[method](self.target(method)).split()
        seconds = time.perf_counter() - start
        figures = [float(word) for word in printed[-2:]] if method == MINDSPORE else []
        peak = int(printed[-1]) if printed else None
        return Measured(seconds, peak, figures[0] if figures else None)

    def clear(self) -> None:
        """Removes what the ways have made."""
        for method in self.methods():
            shutil.rmtree(self.target(method), ignore_errors=True)

    def _work(self) -> dict[str, Callable[[Path], str]]:
        return {COPY: self._copy, OURS: self._ours, OURS_CKPT: self._ours_ckpt, MINDSPORE: self._mindspore}

    def _copy(self, target: Path) -> str:
        subprocess.run(["cp", "-r", self.source, target], check=True)
        sync_below(target)
        return ""

    def _ours(self, target: Path) -> str:
        return run("reshard.our_job", self.source, target, self.num_ranks, self.workers)

    def _ours_ckpt(self, target: Path) -> str:
        arguments = (self.ckpt, target, self.num_ranks, self.workers, "ckpt", self.source)
        return run("reshard.our_job", *arguments)

    def _mindspore(self, target: Path) -> str:
        source = self.ckpt.parents[1]
        printed = run("reshard.mindspore_job", source, target, self.strategy, self.workers)
        sync_below(target)
        return printed


def run(module: str, *arguments: object) -> str:
    """Runs a module of this package in a process of its own and returns what it prints."""
    child = command(sys.executable, module, *arguments)
    return subprocess.run(child, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def sync_below(folder: Path) -> None:
    """Everything below the folder, and the folder, onto the disk."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def drop_cache(folders: list[Path]) -> None:
    """Drops the page cache of the whole system if that is allowed, else of the files in these folders."""
    try:
        DROP.write_text("1")
    except OSError:
        for path in (path for folder in folders for path in folder.iterdir() if path.is_file()):
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def differing(ours: Path, theirs: Path) -> list[str]:
    """A line for each rank's file of theirs that is not as ours."""
    names = [str(path.relative_to(theirs)) for path in sorted(theirs.rglob("*.ckpt"))]
    same, other, missing = filecmp.cmpfiles(ours, theirs, names, shallow=False)
    if not same:
        other = other or ["all files"]
    return [f"{name}: not the same from MindSpore and from mindbatch" for name in (*other, *missing)]
