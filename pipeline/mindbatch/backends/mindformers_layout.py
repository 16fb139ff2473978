"""How MindSpore cuts a MindFormers model over ranks, worked out on this machine; no accelerator is needed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mindbatch.backends import layout_worker
from mindbatch.backends.cuda_stubs import stub_libraries
from mindbatch.backends.failure import BackendError
from mindbatch.backends.gpu_plugin import find_plugin
from mindbatch.backends.layout_process import LOG_NAME, LayoutProcess, Limits, NotJoined
from mindbatch.checkpoint.strategy.strategy import TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_name
from mindbatch.children import command as command_of
from mindbatch.config.environment import cache_folder, plugin_environment
from mindbatch.screen_text import TerminalText

_ATTEMPTS = 3


@dataclass(frozen=True)
class LayoutJob:
    """A model, as keyword arguments of LlamaConfig, and how it shall be cut."""

    model: Mapping[str, Any]
    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    vocab_emb_dp: bool = True

    @property
    def num_ranks(self) -> int:
        return self.data_parallel * self.model_parallel * self.pipeline_stage

    @property
    def leaders(self) -> list[int]:
        """The first rank of each stage: what it holds the others of the stage hold alike."""
        return [*range(0, self.num_ranks, self.data_parallel * self.model_parallel)]

    def as_json(self) -> str:
        """What the child reads."""
        return json.dumps({**vars(self), "num_ranks": self.num_ranks, "leaders": self.leaders})


@dataclass(frozen=True)
class ParameterLayout:
    """A parameter as the ranks of a stage hold it. shape: of the whole parameter."""

    stage: int
    shape: tuple[int, ...]
    layout: TensorLayout

    @property
    def name(self) -> str:
        """As MindFormers calls it."""
        return self.layout.name

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape on each rank."""
        return self.layout.local_shape(self.shape)


@dataclass(frozen=True)
class ModelLayout:
    """All parameters, stage by stage in MindSpore's order, and the content of the strategy files by name.

    borrowed: stages with parameters that they use and another one holds, such as a tied embedding.
    """

    parameters: tuple[ParameterLayout, ...]
    strategy_files: Mapping[str, bytes]
    borrowed: tuple[tuple[int, str], ...] = ()


def infer_layout(job: LayoutJob, limits: Limits, *, verbose: bool = False) -> ModelLayout:
    """The layout of the model.

    verbose: what MindSpore and MindFormers say is printed to standard error.

    Raises:
        BackendError: no GPU plugin, no compiler, or the first failure of a process, in one line.
    """
    plugin = find_plugin()
    stubs = stub_libraries(plugin, cache_folder())
    for attempt in range(_ATTEMPTS):
        with TemporaryDirectory(prefix="mindbatch-") as name:
            folder = Path(name)
            (folder / "job.json").write_text(job.as_json())
            (folder / "strategy").mkdir()
            environment = plugin_environment(stubs, plugin.search_folders, folder, verbose=verbose)
            command = command_of(layout_worker.main, "job.json")
            try:
                LayoutProcess(command, folder, environment, job.num_ranks).run(limits)
                return _read(job, folder)
            except NotJoined:
                if attempt == _ATTEMPTS - 1:
                    raise
            finally:
                if verbose:
                    _show_log(folder / LOG_NAME)
    raise AssertionError("the last attempt returns or raises")


def _read(job: LayoutJob, folder: Path) -> ModelLayout:
    """What the leaders have written: shapes of the compiler, all else as the strategy files have it."""
    parameters: list[ParameterLayout] = []
    borrowed: list[tuple[int, str]] = []
    files: dict[str, bytes] = {}
    for stage, rank in enumerate(job.leaders):
        path = folder / "strategy" / strategy_name(rank)
        try:
            files[path.name] = path.read_bytes()
            shapes = json.loads((folder / f"layout_rank_{rank}.json").read_text())
        except FileNotFoundError as error:
            raise BackendError(f"MindSpore wrote no {Path(error.filename).name} for rank {rank}") from error
        layouts = read_strategy(path).of_stage(stage)
        borrowed += [(stage, name) for name in shapes if name not in layouts]
        parameters += [
            ParameterLayout(stage, tuple(shape), layouts[name])
            for name, shape in shapes.items()
            if name in layouts
        ]
    lost = sorted({name for _, name in borrowed} - {parameter.name for parameter in parameters})
    if lost:
        raise BackendError(f"MindSpore's strategy files lack the parameter {lost[0]}")
    return ModelLayout(tuple(parameters), files, tuple(borrowed))


def _show_log(path: Path) -> None:
    sys.stderr.flush()
    with path.open(errors="replace") as log:
        shutil.copyfileobj(log, TerminalText(sys.stderr))
