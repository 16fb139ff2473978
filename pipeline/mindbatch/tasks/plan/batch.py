"""The plan of a batch: rows, tokens, memory and time.

Weights are read only to calibrate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mindbatch.amounts import size
from mindbatch.config.memory import free_memory
from mindbatch.config.model_schema import ParallelConfig
from mindbatch.dataset.rows import RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.engine.outline import ModelOutline, outline
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.calibration import calibrate, sample_rows
from mindbatch.run.index import RowIndex
from mindbatch.run.input import DataInput, selection_of
from mindbatch.run.plan import Plan, RowTotals, TimeEstimate, count_rows, time_after, time_at
from mindbatch.run.row_check import RowCheck
from mindbatch.run.survey import survey
from mindbatch.storage import Storage
from mindbatch.tasks import machine
from mindbatch.tasks.plan.schema import PlanConfig
from mindbatch.tasks.run_state import state_of

SAMPLE_BATCHES = 4
"""How many batches a calibration runs at most."""


def plan_batch(config: PlanConfig) -> Plan:
    """The plan. Raises ConfigError: the data is not what the settings ask for, or calibrating failed."""
    model = outline(config.model, config.runtime, lora=config.lora)
    with TemporaryDirectory(prefix="mindbatch-") as name:
        return make_plan(config, model, RunFolder(Path(name)))


def make_plan(config: PlanConfig, model: ModelOutline, scratch: RunFolder) -> Plan:
    """The plan of a run.

    scratch: a folder that may be written to, and is removed by the caller.

    Raises:
        ConfigError: the data is not what the settings ask for, or calibrating failed.
    """
    params = DecodingParams(**vars(config.decoding))
    with RowIndex(scratch.index) as index:
        _survey(config, params, index, scratch)
        check = RowCheck(model.idle_engine(), model.tokenizer, params, config.data.date)
        rows = count_rows(index, check)
        time = _time(config, model, params, rows, index)
    plan = Plan(rows, model, time)
    return Plan(rows, model, time, (*_memory_notes(plan), *_run_notes(config)))


def _survey(config: PlanConfig, params: DecodingParams, index: RowIndex, scratch: RunFolder) -> None:
    outputs = None if config.output.dir is None else Path(config.output.dir)
    dataset = DataInput(config.data, Storage()).dataset(scratch, outputs)
    columns = config.output.columns
    maker = RowMaker(config.data, params, dataset.is_openai, columns=columns, lora=config.lora)
    with closing(maker):
        survey(dataset, maker, selection_of(config.data), index)


def _time(
    config: PlanConfig, model: ModelOutline, params: DecodingParams, rows: RowTotals, index: RowIndex
) -> TimeEstimate | None:
    if not rows.usable:
        return None
    if config.calibrate:
        from mindbatch.llm import LLM  # most plans run nothing

        llm = LLM.from_config(replace(config, parallel=ParallelConfig()))
        sample = sample_rows(index, SAMPLE_BATCHES * config.model.batch_size)
        startup = machine.process_age()
        found = calibrate(llm, sample, params, config.runtime.max_batched_tokens, date=config.data.date)
        return time_after(found, rows, model, startup)
    return None if config.rate is None else time_at(config.rate, rows)


def _memory_notes(plan: Plan) -> Iterator[str]:
    """What is worth changing about the memory."""
    model = plan.model
    needed = model.weight_bytes + model.cache_bytes + model.adapter_bytes + model.expert_bytes
    there = free_memory() or needed
    what = "weights, adapters and cache" if model.adapter_bytes else "weights and cache"
    if needed > there:
        yield f"{what} take {size(needed)}, and {size(there)} of memory is there"
    batch_size, fit = model.settings.batch_size, plan.typical
    if plan.rows.usable and fit.sequences < batch_size:
        wanted = (batch_size * model.settings.blocks_for(fit.tokens) + 1) * model.settings.block_size
        memory = _mebibytes(wanted * model.cache_bytes_per_token)
        yield (
            f"model.batch_size={batch_size} cannot be reached: the cache holds {fit.sequences} typical "
            f"sequences; runtime.cache_memory={memory} holds as many"
        )


def _mebibytes(count: int) -> str:
    return f"{-(-count // (1 << 20))}MiB"


def _run_notes(config: PlanConfig) -> Iterator[str]:
    """What the folder of the run holds already."""
    folder = config.output.dir
    if folder is not None and RunFolder(Path(folder)).holds_a_run:
        state = state_of(Path(folder))
        done = f": {state.done} of {state.total} rows are done" if state.done is not None else ""
        yield f"output.dir={folder} holds a run{done}; this plan counts all rows"
