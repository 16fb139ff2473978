"""The page that `mindbatch plan` prints of a batch."""

from __future__ import annotations

from collections.abc import Iterator

from mindbatch.io.amounts import duration, size
from mindbatch.io.screen_text import printable
from mindbatch.run.plan import Lengths, Plan, RankMemory, RowTotals, TimeEstimate
from mindbatch.tasks.formatting import ranges

BAR = 40
"""Columns of the longest bar of the histogram."""


def plan_page(plan: Plan) -> str:
    """The plan for people."""
    blocks = [_rows(plan.rows), _tokens(plan.rows), _memory(plan), [f"time       {_time(plan.time)}"]]
    if plan.notes:
        blocks.append([f"note: {printable(note)}" for note in plan.notes])
    return "\n\n".join("\n".join(block) for block in blocks)


def _rows(rows: RowTotals) -> list[str]:
    bad = f"; {rows.unusable:,} cannot be run" if rows.unusable else ""
    lines = [f"rows       {rows.total:,}{bad}"]
    lines += [f"  {printable(f.source)}:{f.line}: {printable(f.reason)}" for f in rows.failures]
    unnamed = rows.unusable - len(rows.failures)
    return [*lines, f"  and {unnamed:,} more"] if unnamed else lines


def _tokens(rows: RowTotals) -> list[str]:
    outputs = rows.outputs
    if not outputs.count:
        return ["prompts    none"]
    return [
        f"prompts    {rows.prompts.total:,} tokens: {_spread(rows.prompts)}",
        *_bars(rows.prompts),
        f"outputs    at most {outputs.total:,} tokens in {outputs.count:,} sequences",
    ]


def _spread(lengths: Lengths) -> str:
    return (
        f"{lengths.mean:.1f} on average, median {lengths.quantile(0.5):,}, 95% up to "
        f"{lengths.quantile(0.95):,}, longest {lengths.longest:,}"
    )


def _bars(lengths: Lengths) -> Iterator[str]:
    parts = lengths.histogram()
    most = max(part.rows for part in parts)
    for part in parts:
        span = f"{part.first:,}-{part.last:,}"
        yield f"  {span:>15}  {part.rows:>9,}  {'#' * -(-part.rows * BAR // most)}"


def _memory(plan: Plan) -> list[str]:
    setup, topology = plan.setup, plan.ranks.topology
    is_one = topology.world_size == 1
    each, stored = ("", f" ({size(setup.stored_bytes)} in the folder)") if is_one else (" on each rank", "")
    lines = [
        f"weights    {size(setup.weight_bytes)}: {setup.num_parameters:,} parameters in "
        f"{setup.weight_type.name}{stored}",
        f"cache      {size(setup.cache_bytes)}{each}: {setup.cache_tokens:,} tokens of "
        f"{size(setup.cache_bytes_per_token)}",
    ]
    if setup.expert_bytes:
        tokens = f"{setup.settings.max_batched_tokens:,} tokens"
        lines.append(f"experts    {size(setup.expert_bytes)}{each}: what they take in a step of {tokens}")
    if setup.adapters.merged is not None:
        lines.append(f"adapters   {setup.adapters.known.default} becomes part of the weights")
    if (live := setup.adapters.live) is not None:
        count = f"{live.max_loaded:,} of {len(live.adapters):,} in memory at a time"
        lines.append(
            f"adapters   {size(setup.adapter_bytes)}: {count}, each with as much as the largest takes"
        )
    if not is_one:
        lines += _ranks(plan.ranks)
    if not plan.rows.usable:
        return lines
    return [
        *lines,
        f"fits       {plan.typical.sequences:,} typical sequences ({plan.typical.tokens:,} tokens each) or "
        f"{plan.longest.sequences:,} of the longest ({plan.longest.tokens:,}){plan.of_each_batch}; "
        f"model.batch_size={setup.settings.batch_size}",
    ]


def _ranks(ranks: RankMemory) -> Iterator[str]:
    """Yields the memory of all ranks, then that of a rank by stage."""
    topology, total = ranks.topology, ranks.demand(range(ranks.topology.world_size)).total
    replicas = "1 replica" if topology.data_parallel == 1 else f"{topology.data_parallel} replicas"
    yield f"ranks      {size(total)} on {topology.world_size}: {replicas} of {topology.replica_size}"
    for held, demand in ranks.stages():
        where = f", ranks {ranges(held)} of each replica" if topology.pipeline_stage > 1 else ""
        yield f"  {size(demand.total)} on each{where}: {demand.parts()}"


def _time(time: TimeEstimate | None) -> str:
    if time is None:
        return "not estimated; give rate=TOKENS_PER_SECOND or calibrate=true"
    most = "at most " if time.is_most else ""
    work = f"{time.generated_tokens:,} tokens to generate at {time.rate:,.1f} tokens/s"
    if not time.measured:
        return f"{most}{duration(time.seconds)}: {work} (given), without starting up"
    return (
        f"{most}{duration(time.seconds)}: {duration(time.startup_seconds)} to start, "
        f"{duration(time.compile_seconds)} more in the first steps of their sizes, {work} (measured)"
    )
