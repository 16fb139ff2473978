"""The page that `mindbatch plan model.provider=mindformers` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from mindbatch.backends.mindformers_layout import LayoutJob, ModelLayout, ParameterLayout
from mindbatch.screen_text import printable
from mindbatch.tasks.formatting import table
from mindbatch.tasks.plan.strategy_folder import strategy_lines


def layout_page(model_type: str, job: LayoutJob, layout: ModelLayout, paths: Sequence[Path]) -> str:
    """Every parameter with its cut, what each rank holds, and where the strategy files are."""
    blocks = [_head(model_type, job), _parameters(layout), _sums(job, layout), strategy_lines(paths)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(model_type: str, job: LayoutJob) -> list[str]:
    return [
        f"MindSpore's layout of MindFormers' Llama as {model_type}",
        f"data_parallel {job.data_parallel} x model_parallel {job.model_parallel} x pipeline_stage "
        f"{job.pipeline_stage}: {job.num_ranks} ranks",
    ]


def _parameters(layout: ModelLayout) -> list[str]:
    rows = [["stage", "parameter", "shape", "on a rank", "cut"]]
    rows += [
        [str(each.stage), printable(each.name), _shape(each.shape), _shape(each.local_shape), _cut(each)]
        for each in layout.parameters
    ]
    return table(rows, right=(0,))


def _shape(shape: Iterable[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _cut(parameter: ParameterLayout) -> str:
    cuts = [
        f"dimension {index} into {whole // part}"
        for index, (whole, part) in enumerate(zip(parameter.shape, parameter.local_shape, strict=True))
        if whole != part
    ]
    return ", ".join(cuts) or "whole"


def _sums(job: LayoutJob, layout: ModelLayout) -> list[str]:
    lines: list[str] = []
    for stage in range(job.pipeline_stage):
        held = [each for each in layout.parameters if each.stage == stage]
        here = sum(math.prod(each.local_shape) for each in held)
        whole = sum(math.prod(each.shape) for each in held)
        lines.append(f"stage {stage}: {len(held)} parameters; a rank holds {here:,} of {whole:,} elements")
    lines += [
        f"note: stage {stage} uses {printable(name)} too, which MindSpore's files have in another stage only"
        for stage, name in layout.borrowed
    ]
    return lines
