"""Checkpoints cut by one MindSpore strategy become checkpoints cut by another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindbatch.checkpoint.faults import located, raise_if_any
from mindbatch.checkpoint.folders.tensor_set import Source, TensorSet, open_source
from mindbatch.checkpoint.formats.ckpt_format import ckpt_layout
from mindbatch.checkpoint.formats.file_layout import FileLayout
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.names.named_ranks import as_placed
from mindbatch.checkpoint.names.stored_plan import plan_digest, unnamed_plans
from mindbatch.checkpoint.placement.placement import Placement, whole_placements
from mindbatch.checkpoint.placement.plan import ReshardPlan, plan_reshard
from mindbatch.checkpoint.placement.plan_proof import prove
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.reshard.jobs import jobs_of
from mindbatch.checkpoint.reshard.order import Order
from mindbatch.checkpoint.reshard.replicas import digest_faults
from mindbatch.checkpoint.strategy.placements import full_shapes, part_fault, strategy_placements
from mindbatch.checkpoint.strategy.strategy import Strategy
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.errors import CheckpointError, ConfigError

CKPT, SAFETENSORS = "ckpt", "safetensors"


@dataclass
class Transform:
    """An opened source and where its tensors are; notes: lines for the user."""

    source: Source
    placements: Mapping[str, Placement]
    target: Strategy | None
    notes: list[str]

    @property
    def num_ranks(self) -> int:
        """Ranks of the target."""
        return self.target.num_ranks if self.target else 1

    @property
    def shapes(self) -> dict[str, Shape]:
        """The full shape of every tensor."""
        return {name: placement.shape for name, placement in self.placements.items()}

    def wanted(self, names: Iterable[str]) -> dict[str, Placement]:
        """Where these tensors are in the target. CheckpointError when the strategy does not fit them."""
        shapes = {name: self.placements[name].shape for name in names}
        with located(self.source.path):
            return strategy_placements(self.target, shapes) if self.target else whole_placements(shapes)

    def dtype(self, name: str) -> str:
        """The dtype of a tensor, which all ranks have alike."""
        return self.source.dtype(name)

    def proved(self, names: Iterable[str]) -> ReshardPlan:
        """The plan for these tensors, shown to be right."""
        wanted = self.wanted(names)
        plan = plan_reshard({name: self.placements[name] for name in wanted}, wanted)
        prove(plan)
        return plan


def open_transform(
    source: Path, source_strategy: Path | None, target_strategy: Path | None, *, verify: bool = False
) -> Transform:
    """Opens a checkpoint file or a folder of rank folders. Strategies are files or folders; None: not cut.

    verify: everything is read against digests and checksums first; else only what a plan does not read.

    Raises:
        ConfigError: nothing there, or several ranks without a strategy.
        CheckpointError: lists what is damaged or does not fit.
    """
    target = read_strategy(target_strategy) if target_strategy else None
    strategy = read_strategy(source_strategy) if source_strategy else None
    opened = open_source(source, verify=verify)
    try:
        notes: list[str] = []
        if strategy is not None and len(opened.ranks) == 1 and strategy.num_ranks > 1:
            notes.append(_whole(source, strategy, opened.ranks[0]))
            strategy = None
        if not verify:
            opened.check_heads()
        raise_if_any(opened.dtype_faults())
        found = _placements(opened, strategy)
        raise_if_any(digest_faults(as_placed(found, len(opened.ranks)), opened.ranks))
        return Transform(opened, found, target, notes)
    except BaseException:
        opened.close()
        raise


def _whole(source: Path, strategy: Strategy, rank: TensorSet) -> str:
    """A note that the only rank is taken as whole. CheckpointError when it is what is left of several."""
    if fault := part_fault(strategy, rank.shapes):
        raise CheckpointError(
            f"{source}: holds one rank of the {strategy.num_ranks} that the strategy is for; {fault}; "
            "the others must be there, or no strategy be given for the source if this is the whole"
        )
    return f"{source}: holds one rank, so it is whole; the strategy of the source is not used"


def _placements(source: Source, strategy: Strategy | None) -> dict[str, Placement]:
    if strategy is not None:
        with located(source.path):
            shapes = full_shapes(strategy, [rank.shapes for rank in source.ranks])
            return strategy_placements(strategy, shapes)
    if len(source.ranks) > 1:
        raise ConfigError(f"{source.path}: {len(source.ranks)} ranks; the strategy of the source is needed")
    return whole_placements(source.ranks[0].shapes)


def transform_order(transform: Transform, target: Path, prefix: str) -> Order:
    """What makes target/rank_N/{prefix}N.ckpt of all tensors.

    Raises:
        CheckpointError: a strategy that does not fit, or tensors that a .ckpt cannot hold.
    """
    plan = transform.proved(transform.placements)
    plans = unnamed_plans(plan)
    dtypes = {name: transform.dtype(name) for name in transform.placements}
    files = [f"rank_{rank}/{prefix}{rank}.{CKPT}" for rank in range(transform.num_ranks)]
    layouts = {name: layout_of_rank(plan, rank, dtypes, CKPT) for rank, name in enumerate(files)}
    return Order(
        target=target.resolve(),
        settings={"prefix": prefix, "ranks": transform.num_ranks},
        source=transform.source.identity(),
        plan=plan_digest(plans),
        layouts=layouts,
        jobs=tuple(jobs_of(plans, transform.source.ranks, layouts, files, dtypes)),
        beside={},
        stamps=transform.source.stamps(),
    )


def layout_of_rank(plan: ReshardPlan, rank: int, dtypes: Mapping[str, str], kind: str) -> FileLayout:
    """The file of a target rank."""
    entries = [(each.name, dtypes[each.name], each.shape) for each in plan.of_rank(rank)]
    return ckpt_layout(entries) if kind == CKPT else safetensors_layout(entries)
