"""A parallel strategy: the layouts of the parameters of one pipeline stage, or of several."""

from __future__ import annotations

from dataclasses import dataclass

from mindbatch.checkpoint.strategy.tensor_layout import TensorLayout


@dataclass(frozen=True)
class OperatorStrategy:
    """How one operator is cut; its stage is that of the file."""

    name: str
    stage: int
    cuts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Strategy:
    """What a strategy file says; `layouts` in file order."""

    layouts: tuple[TensorLayout, ...]
    operators: tuple[OperatorStrategy, ...] = ()
    current_stage: int = 0

    @property
    def stage(self) -> int:
        """The stage of the parameters that do not say theirs: that of the first operator, as in MindSpore."""
        return self.operators[0].stage if self.operators else 0

    @property
    def stages(self) -> tuple[int, ...]:
        """All stages that have parameters."""
        return tuple(sorted({self.stage_of(layout) for layout in self.layouts}))

    @property
    def num_devices(self) -> int:
        """Devices of each stage."""
        return self.layouts[0].num_devices if self.layouts else 1

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages."""
        return self.num_devices * (max(self.stages, default=0) + 1)

    def stage_of(self, layout: TensorLayout) -> int:
        """The stage that holds the parameter."""
        return self.stage if layout.stage is None else layout.stage

    def of_stage(self, stage: int) -> dict[str, TensorLayout]:
        """The layouts of a stage by parameter."""
        return {layout.name: layout for layout in self.layouts if self.stage_of(layout) == stage}

    def of_rank(self, rank: int) -> dict[str, TensorLayout]:
        """The layouts by parameter of the stage that a rank belongs to."""
        return self.of_stage(rank // self.num_devices)
