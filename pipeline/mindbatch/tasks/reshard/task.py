"""`mindbatch reshard`: a checkpoint cut for other ranks, merged, or in another format or dtype."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindbatch.checkpoint.reshard.carry_out import carry_out
from mindbatch.checkpoint.reshard.folder import part_of
from mindbatch.checkpoint.reshard.order import Outcome
from mindbatch.checkpoint.reshard.target import is_there
from mindbatch.errors import EXIT_DONE
from mindbatch.screen_text import printable, say, show
from mindbatch.tasks.formatting import size
from mindbatch.tasks.reshard.logits_check import logits_check
from mindbatch.tasks.reshard.order import Planned, plan_order
from mindbatch.tasks.reshard.progress import shown_progress
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_origin


def run(config: ReshardConfig) -> int:
    """Runs the task."""
    origin = open_origin(config)
    with origin.source:
        planned = plan_order(config, origin)
        check = logits_check(config, origin, planned) if config.compares_logits else None
    say(*origin.notes)
    if config.dry_run:
        is_done = is_there(planned.order)
        show("\n".join(_plan_lines(planned, is_done)))
        return EXIT_DONE
    start = time.monotonic()
    with _saying_what_is_kept(planned.order.target), shown_progress() as progress:
        if check is not None:
            check.progress = progress
        outcome = carry_out(planned.order, progress=progress, approve=check)
        if check is not None and not outcome.is_new:
            check(planned.order.target)
    say(*outcome.notes)
    compared = f", {check.found}" if check is not None else ""
    show(_verdict(planned, outcome, time.monotonic() - start) + compared)
    return EXIT_DONE


@contextmanager
def _saying_what_is_kept(target: Path) -> Iterator[None]:
    """An interrupt ends it, and the user is told that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if part_of(target).is_dir():
            say(f"{part_of(target)}: keeps what was finished; the same command goes on")
        raise


def _verdict(planned: Planned, outcome: Outcome, seconds: float) -> str:
    order = planned.order
    where = printable(str(order.target))
    proved = ", each element read back and compared" if order.verify else ""
    if not outcome.is_new:
        return f"{where}: was there already, the same reshard{proved}"
    kept = (
        f", {outcome.kept} of the ranks' {len(planned.tensors)} tensors from before" if outcome.kept else ""
    )
    return f"{where}: written: {_counts(planned)} in {seconds:.1f} s{kept}{proved}"


def _counts(planned: Planned) -> str:
    ranks, names = len(planned.order.layouts), len(planned.names)
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {names} tensors, {size(planned.order.nbytes)}"


def _plan_lines(planned: Planned, is_done: bool) -> Iterator[str]:
    """What would be done: a line for each file, then the sums."""
    order = planned.order
    for name, layout in order.layouts.items():
        yield f"{name}: {len(layout.extents)} tensors, {size(layout.total_bytes)}"
    for tensor in planned.tensors:
        if not tensor.padding:
            continue
        boxes = ", ".join(str([*map(list, box)]) for box in tensor.padding)
        yield f"rank {tensor.rank}: {printable(tensor.name)} of shape {[*tensor.shape]}: zeros at {boxes}"
    others = ", ".join(order.beside) or "nothing"
    yield f"beside them: {others}"
    copies = sum(len(tensor.copies) for tensor in planned.tensors)
    yield (
        f"planned and proved: {_counts(planned)}, {copies} copies, {order.workers} "
        f"{'process' if order.workers == 1 else 'processes'}; nothing is written (dry_run)"
    )
    if is_done:
        yield f"{printable(str(order.target))}: is there already, the same reshard"
