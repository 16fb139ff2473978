"""`mindbatch plan` of a batch: rows, tokens, memory and time, and the page that shows them."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from mindbatch.config.machine import MachineMemory, memory_here
from mindbatch.config.model_task import slices_in_sums, slices_notes
from mindbatch.dataset.data_config import always_chats
from mindbatch.dataset.rows import RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import folder_embeddings
from mindbatch.io.amounts import duration, ranges, size
from mindbatch.io.screen_text import printable
from mindbatch.io.storage import Storage, TemporaryFolder
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.loading.build import dry_run_engine
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.setup import EngineSetup, prepare
from mindbatch.parallel.topology import DeviceMap, Topology
from mindbatch.prompts.prompts import refuse_chats
from mindbatch.replicas.load import topology_of
from mindbatch.run.calibration import calibrate, sample_rows
from mindbatch.run.index import RowIndex
from mindbatch.run.plan import (
    Lengths,
    Plan,
    RankMemory,
    RowTotals,
    TimeEstimate,
    count_rows,
    time_after,
    time_at,
)
from mindbatch.run.survey import DataInput, RowCheck, refusing_chats, selection_of, survey
from mindbatch.tasks.plan.schema import PlanConfig
from mindbatch.tasks.runs.run_state import state_of

SAMPLE_BATCHES = 64
"""Limit of the batches in a calibration: enough that the last, emptying one is a small part of it."""
MIB = 1 << 20
BAR = 40
"""Columns of the longest bar of the histogram."""


def plan_batch(config: PlanConfig, device_map: DeviceMap = None) -> Plan:
    """Makes the plan. Raises ConfigError if the data does not fit the settings, or the calibration failed."""
    topology = replace(topology_of(config.parallel), device_map=device_map)
    setup = prepare(config.model, config.runtime, topology.part_of(0), config.lora)
    if chat_setting := always_chats(config.data):
        refuse_chats(setup.tokenizer, chat_setting)
    with TemporaryFolder() as folder:
        return _make_plan(config, setup, topology, RunFolder(folder))


def _make_plan(config: PlanConfig, setup: EngineSetup, topology: Topology, scratch: RunFolder) -> Plan:
    """Makes the plan. setup: of one rank. scratch: a folder for files, which the caller removes."""
    params = DecodingParams(**vars(config.decoding))
    with RowIndex(scratch.index) as index:
        _survey(config, setup, params, index, scratch)
        check = RowCheck(dry_run_engine(setup), setup.tokenizer, params, config.data.date)
        rows = count_rows(index, check)
        estimate = _time_estimate(config, params, rows, index, check)
    ranks = RankMemory(topology, partial(MemoryDemand.of, setup))
    plan = Plan(rows, setup, ranks, estimate)
    of_prompts = None if setup.tokenizer is None else setup.tokenizer.take_note()
    of_slices = slices_notes(slices_in_sums(config))
    notes = (*_memory_notes(config, plan), *of_slices, *_run_notes(config), of_prompts)
    return replace(plan, notes=tuple(note for note in notes if note is not None))


def _survey(
    config: PlanConfig, setup: EngineSetup, params: DecodingParams, index: RowIndex, scratch: RunFolder
) -> None:
    outputs = None if config.output.dir is None else Path(config.output.dir)
    dataset = DataInput(config.data, Storage()).dataset(scratch, outputs)
    columns = config.output.columns
    embeddings = folder_embeddings(config.model.checkpoint_name_or_path)
    maker = RowMaker(
        config.data, params, dataset.is_openai, columns=columns, lora=config.lora, embeddings=embeddings
    )
    with closing(maker):
        check = refusing_chats(lambda: setup.tokenizer)
        survey(dataset, maker, selection_of(config.data), index, check=check)


def _time_estimate(
    config: PlanConfig, params: DecodingParams, rows: RowTotals, index: RowIndex, check: RowCheck
) -> TimeEstimate | None:
    if not rows.usable:
        return None
    if config.calibrate:
        from mindbatch.llm import LLM  # most plans run nothing

        # Until now this process has done in one thread what a batch begins with.
        computed, begun = time.process_time(), time.perf_counter()
        llm = LLM.from_config(config)
        startup = computed + time.perf_counter() - begun
        sample = sample_rows(index, SAMPLE_BATCHES * config.model.batch_size)
        max_tokens = config.runtime.max_batched_tokens
        return time_after(calibrate(llm, sample, params, check, max_tokens, config.data.date), rows, startup)
    return None if config.rate is None else time_at(config.rate, rows)


def _memory_notes(config: PlanConfig, plan: Plan) -> Iterator[str]:
    setup = plan.setup
    if (machine := memory_here()) is not None and config.launch.launcher != "ray":  # which finds the machines
        num_ranks = config.launch.local_worker_num or plan.ranks.topology.world_size
        yield from _machine_notes(plan.ranks.demand(range(num_ranks)), machine)
    batch_size, fit = setup.settings.batch_size, plan.typical
    if plan.rows.usable and fit.sequences < batch_size:
        together = batch_size * setup.num_engines
        blocks = together * setup.settings.blocks_for(fit.tokens) + 1
        states = together * setup.spec.state_bytes
        needed = blocks * setup.settings.block_size * setup.cache_bytes_per_token
        needed = max(needed + states, 2 * states)
        yield (
            f"model.batch_size={batch_size} cannot be reached: the cache holds {fit.sequences} typical "
            f"sequences{plan.of_each_batch}; runtime.cache_memory={-(-needed // MIB)}MiB holds as many"
        )


def _machine_notes(demand: MemoryDemand, machine: MachineMemory) -> Iterator[str]:
    if error := demand.error(machine):
        yield error
    elif demand.setup.runtime.device_target == "CPU" and demand.total > machine.free:
        yield (
            f"memory: {demand.parts()} take {size(demand.total)}, and {size(machine.free)} of memory are "
            f"free here; try: {', or '.join(demand.remedies(machine.free))}"
        )


def _run_notes(config: PlanConfig) -> Iterator[str]:
    folder = config.output.dir
    if folder is not None and RunFolder(Path(folder)).holds_a_run:
        state = state_of(Path(folder))
        done = f": {state.done} of {state.total} rows are done" if state.done is not None else ""
        yield f"output.dir={folder} holds a run{done}; this plan counts all rows"


def plan_page(plan: Plan) -> str:
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
    max_rows = max(part.rows for part in parts)
    for part in parts:
        span = f"{part.first:,}-{part.last:,}"
        yield f"  {span:>15}  {part.rows:>9,}  {'#' * -(-part.rows * BAR // max_rows)}"


def _states(setup: EngineSetup) -> str:
    """Describes the recurrent states in the cache; empty for a model without recurrent layers."""
    count = setup.num_states
    return f", and {count:,} states of {size(setup.spec.state_bytes)}" if count else ""


def _memory(plan: Plan) -> list[str]:
    setup, topology = plan.setup, plan.ranks.topology
    is_one = topology.world_size == 1
    on_each, stored = (
        ("", f" ({size(setup.stored_bytes)} in the folder)") if is_one else (" on each rank", "")
    )
    lines = [
        f"weights    {size(setup.weight_bytes)}: {setup.num_parameters:,} parameters in "
        f"{setup.weight_types}{stored}",
        f"cache      {size(setup.cache_bytes)}{on_each}: {setup.cache_tokens:,} tokens of "
        f"{size(setup.cache_bytes_per_token)}{_states(setup)}",
    ]
    if setup.expert_bytes:
        tokens = f"{setup.settings.max_batched_tokens:,} tokens"
        lines.append(f"experts    {size(setup.expert_bytes)}{on_each}: what they take in a step of {tokens}")
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
    topology, total = ranks.topology, ranks.demand(range(ranks.topology.world_size)).total
    replicas = "1 replica" if topology.data_parallel == 1 else f"{topology.data_parallel} replicas"
    yield f"ranks      {size(total)} on {topology.world_size}: {replicas} of {topology.replica_size}"
    for stage_ranks, demand in ranks.stages():
        where = f", ranks {ranges(stage_ranks)} of each replica" if topology.pipeline_stage > 1 else ""
        yield f"  {size(demand.total)} on each{where}: {demand.parts()}"


def _time(time: TimeEstimate | None) -> str:
    if time is None:
        return "not estimated; give rate=TOKENS_PER_SECOND or calibrate=true"
    qualifier = "at most " if time.is_most else ""
    work = f"{time.generated_tokens:,} tokens to generate at {time.rate:,.1f} tokens/s"
    if not time.measured:
        return f"{qualifier}{duration(time.seconds)}: {work} (given), without starting up"
    return (
        f"{qualifier}{duration(time.seconds)}: {duration(time.startup_seconds)} to start, "
        f"{duration(time.compile_seconds)} in the first steps of their sizes, {work} (measured)"
    )
