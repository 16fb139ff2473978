"""Checkpoints cut by one MindSpore strategy become checkpoints cut by another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.checkpoint.error_lines import located, raise_if_any
from mindbatch.checkpoint.folders.resharded import MERGED_KEY
from mindbatch.checkpoint.folders.tensor_set import Source, open_source
from mindbatch.checkpoint.formats.ckpt import CKPT
from mindbatch.checkpoint.placement.proof import proved_copies
from mindbatch.checkpoint.placement.regions import Placement, RankFiles, as_rank_files, whole_placements
from mindbatch.checkpoint.reshard.job import jobs_of
from mindbatch.checkpoint.reshard.plan import ReshardPlan, layouts_of
from mindbatch.checkpoint.reshard.replicas import digest_errors
from mindbatch.checkpoint.strategy.placements import full_shapes, strategy_placements
from mindbatch.checkpoint.strategy.strategy import Strategy
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import ConfigError

if TYPE_CHECKING:
    from mindbatch.checkpoint.lora.plan import LoraPlan


@dataclass
class Transform:
    """An opened source and where its tensors are; notes: lines for the user."""

    source: Source
    placements: Mapping[str, Placement]
    target: Strategy | None
    target_path: Path | None
    notes: list[str] = field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        """Ranks of the target."""
        return self.target.num_ranks if self.target else 1

    def files(self, names: Iterable[str]) -> RankFiles:
        return as_rank_files({name: self.placements[name] for name in names}, len(self.source.ranks))


def open_transform(source: Path, source_strategy: Path | None, target_strategy: Path | None) -> Transform:
    """Opens a checkpoint file or a folder of rank folders. Strategies are files or folders; None: not cut.

    Raises:
        ConfigError: nothing there, or several ranks without a strategy.
        CheckpointError: lists what is damaged or does not fit.
    """
    target = read_strategy(target_strategy) if target_strategy else None
    strategy = read_strategy(source_strategy) if source_strategy else None
    opened = open_source(source)
    with closed_on_error(opened):
        opened.check_sums()
        raise_if_any(opened.dtype_errors())
        source_placements = _placements(opened, strategy)
        raise_if_any(digest_errors(as_rank_files(source_placements, len(opened.ranks)), opened.ranks))
        return Transform(opened, source_placements, target, target_strategy)


def _placements(source: Source, strategy: Strategy | None) -> dict[str, Placement]:
    if strategy is not None:
        with located(source.path):
            shapes = full_shapes(strategy, [rank.shapes for rank in source.ranks])
            return strategy_placements(strategy, shapes)
    if len(source.ranks) > 1:
        raise ConfigError(f"{source.path}: {len(source.ranks)} ranks; the strategy of the source is needed")
    return whole_placements(source.ranks[0].shapes)


def plan_transform(
    transform: Transform, target: Path, prefix: str, *, kind: str = CKPT.name, lora: LoraPlan | None = None
) -> ReshardPlan:
    """Plans target/rank_N/{prefix}N.{kind} of all tensors, or of those that a merge leaves.

    Raises:
        CheckpointError: a strategy that does not fit, or tensors that a file of that kind cannot hold.
    """
    names = [*transform.placements]
    if lora is not None:
        from mindbatch.checkpoint.lora.names import is_lora_name  # needs more than NumPy, which suffices else

        names = [name for name in names if not is_lora_name(name)]
    source = transform.files(names)
    with located(transform.source.path):
        source_placements = (
            strategy_placements(transform.target, source.shapes)
            if transform.target
            else whole_placements(source.shapes)
        )
    plans = proved_copies(source, as_rank_files(source_placements, transform.num_ranks))
    dtypes = {name: transform.source.dtype(name) for name in names}
    files = [f"rank_{rank}/{prefix}{rank}.{kind}" for rank in range(transform.num_ranks)]
    settings: dict[str, Any] = {"prefix": prefix, "ranks": transform.num_ranks}
    if transform.target_path is not None and transform.num_ranks > 1:
        settings["strategy"] = str(transform.target_path.resolve())  # for who reads the ranks later
    if lora is not None:
        files = files if len(files) > 1 else [f"merged_lora.{kind}"]
        settings |= {"format": kind, MERGED_KEY: {lora.digest: lora.scaling}, **lora.scalings}
    layouts = layouts_of(plans, files, dtypes, kind)
    return ReshardPlan(
        target=target.resolve(),
        settings=settings,
        source=transform.source.identity(),
        tensors=tuple(plans),
        layouts=layouts,
        jobs=tuple(
            jobs_of(
                plans,
                source,
                transform.source.ranks,
                layouts,
                files,
                dtypes,
                lora=lora,
                overflow_hint=" with the adapter",
            )
        ),
        other_files={},
        stamps=transform.source.stamps(),
    )
