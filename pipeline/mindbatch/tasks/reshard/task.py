"""`mindbatch reshard`: converts a checkpoint for other ranks, formats or dtypes, or merges an adapter."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.folder import exists, part_of
from mindbatch.checkpoint.reshard.plan import Outcome, ReshardPlan
from mindbatch.checkpoint.reshard.progress import PlainProgress, Progress, TimeLeft, mebibytes
from mindbatch.io.amounts import duration, size
from mindbatch.io.errors import EXIT_DONE, is_unfinished
from mindbatch.io.screen_text import printable, say, show
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source


def run(config: ReshardConfig) -> int:
    opened = open_reshard_source(config)
    with opened.source:
        plan = plan_reshard(config, opened)
        check = None
        if config.compares_logits:
            from mindbatch.tasks.reshard.logits_check import (
                logits_check,  # networks and engine: seldom needed
            )

            check = logits_check(config, opened, plan)
    say(*opened.notes)
    if config.dry_run:
        is_done = exists(plan)
        show(*_plan_lines(plan, is_done))
        return EXIT_DONE
    start = time.monotonic()
    try:
        with shown_progress() as progress:
            if check is not None:
                check.progress = progress
            outcome = execute_plan(plan, progress=progress, approve=check)
            if check is not None and not outcome.is_new:
                check(plan.target)
    except BaseException as error:
        if is_unfinished(error) and part_of(plan.target).is_dir():
            say(f"{part_of(plan.target)}: keeps what was finished; the same command goes on")
        raise
    say(*outcome.notes)
    compared = f", {check.difference}" if check is not None else ""
    show(_verdict(plan, outcome, time.monotonic() - start) + compared)
    return EXIT_DONE


def _verdict(plan: ReshardPlan, outcome: Outcome, seconds: float) -> str:
    where = printable(str(plan.target))
    proved = ", each element read back and compared" if plan.verify else ""
    if not outcome.is_new:
        return f"{where}: was there already, the same reshard{proved}"
    kept = f", {outcome.kept} of the ranks' {len(plan.tensors)} tensors from before" if outcome.kept else ""
    return f"{where}: written: {_counts(plan)} in {duration(seconds)}{kept}{proved}"


def _counts(plan: ReshardPlan) -> str:
    ranks, names = len(plan.layouts), len({tensor.name for tensor in plan.tensors})
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {names} tensors, {size(plan.nbytes)}"


def _plan_lines(plan: ReshardPlan, is_done: bool) -> Iterator[str]:
    for name, layout in plan.layouts.items():
        yield f"{name}: {len(layout.extents)} tensors, {size(layout.total_bytes)}"
    for tensor in plan.tensors:
        if not tensor.padding:
            continue
        regions = ", ".join(str([*map(list, region)]) for region in tensor.padding)
        yield f"rank {tensor.rank}: {printable(tensor.name)} of shape {[*tensor.shape]}: zeros at {regions}"
    others = ", ".join(plan.other_files) or "nothing"
    yield f"beside them: {others}"
    copies = sum(len(tensor.copies) for tensor in plan.tensors)
    yield (
        f"planned and proved: {_counts(plan)}, {copies} copies, {plan.workers} "
        f"{'thread' if plan.workers == 1 else 'threads'}; nothing is written (dry_run)"
    )
    if is_done:
        yield f"{printable(str(plan.target))}: already exists, made by the same reshard"


def _has_bar() -> bool:
    if not sys.stderr.isatty():
        return False
    from mindbatch.io.moving_bar import can_redraw  # rich is slow to import

    return can_redraw(sys.stderr)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Shows a bar of the progress that is reported within `with`, and removes it at the end."""
    if not _has_bar():
        yield PlainProgress("mindbatch")
        return
    from rich.console import Console

    from mindbatch.io.moving_bar import MovingBar

    left = TimeLeft(time.monotonic)
    with MovingBar("MiB", Console(stderr=True)) as bar:

        def show(activity: str, done: int, total: int) -> None:
            bar.set(*mebibytes(done, total), f"{activity}{left(activity, done, total)}")

        yield show
