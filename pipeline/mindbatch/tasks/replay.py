"""`mindbatch replay`: runs one row of a run again, and compares the result with that in the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.folder_embeddings import folder_embeddings
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError, PromptError
from mindbatch.io.screen_text import data_output, printable, show
from mindbatch.io.storage import Storage
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import ComputedWith, Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes
from mindbatch.llm import LLM
from mindbatch.run.batch_config import BatchConfig, ReplayConfig
from mindbatch.run.generation import entry_of
from mindbatch.run.identity import fingerprint_fields
from mindbatch.run.manifest import computed_with
from mindbatch.run.survey import DataInput
from mindbatch.tasks.diff import difference


def run(config: ReplayConfig) -> int:
    """Runs the task; returns the exit code, failed if the result differs."""
    folder, key = RunFolder(Path(config.output.dir or "")), config.key or ""
    record = RunRecord.read(folder)
    outcome = _entry(folder, record, key)
    row = _row(config, folder, key, record.sources or {})
    if outcome is None:
        raise ConfigError(f"key={key}: not run yet in {folder.path}; the command of the run resumes it")
    entry, kind = outcome
    with LLM.from_config(_with_one_replica(config)) as llm:
        again, now = _again(config, row, record, llm), computed_with(config, llm.kernels)
    show(f"{printable(row.source)}:{row.line}: key {printable(row.key)}")
    for change in changes(record.fields, fingerprint_fields(config)):
        show(f"other settings: {printable(change)}")
    for change in changes(kind, now):
        show(f"computed with: {printable(change)}")
    for line in _outcome(again):
        print(line, file=data_output())
    changed = _changed(entry, again)
    show(printable(changed or "equal to the run"))
    return EXIT_FAILED if changed else EXIT_DONE


def _again(config: ReplayConfig, row: DataRow, record: RunRecord, llm: LLM) -> Entry:
    prompt = row.prompt(config.data.date or record.date)
    params = row.params(DecodingParams(**vars(config.decoding)))
    finished = [done for step in llm.steps([(prompt, params)]) for done in step.finished]
    return entry_of(finished[0], row)


def _with_one_replica(config: ReplayConfig) -> ReplayConfig:
    """Sets data_parallel to 1, which is enough for a row, unless a key fixes the number of processes."""
    counted = config.launch.worker_num is not None or config.launch.local_worker_num is not None
    if counted or config.parallel.data_parallel == 1:
        return config
    return replace(config, parallel=replace(config.parallel, data_parallel=1))


def _outcome(entry: Entry) -> list[str]:
    if entry.kind == "error":
        return [_named(entry)]
    return [f"[{generation['index']}] {generation['text']}" for generation in entry.body["generations"]]


def _changed(before: Entry, after: Entry) -> str | None:
    """Describes the first difference of two results in one line; None if they are the same."""
    if before.kind == after.kind == "result":
        changed = difference(before.body, after.body)
        if changed is None:
            return None
        position = "" if changed.token is None else f", first differing token {changed.token}"
        return f"changed: generation {changed.generation}{position}: {changed.first!r} -> {changed.second!r}"
    one, other = _named(before), _named(after)
    return None if one == other else f"changed: {one} -> {other}"


def _named(entry: Entry) -> str:
    return "a result" if entry.kind == "result" else f"error: {entry.body['reason']}"


def _entry(folder: RunFolder, record: RunRecord, key: str) -> tuple[Entry, ComputedWith] | None:
    """Reads the last entry of a row in the ledger, with the versions and hardware that computed it."""
    with Ledger(folder, record.fingerprint) as ledger:
        locations = [location for entry, location in ledger.recover() if entry.key == key]
        if not locations:
            return None
        return ledger.read(locations[-1]), ledger.computed_with_in(locations[-1].session)


def _row(config: BatchConfig, folder: RunFolder, key: str, sources: Mapping[str, Any]) -> DataRow:
    """Finds the row of a key. sources: see `RunRecord`. Raises PromptError if the row cannot be run."""
    dataset = DataInput(config.data, Storage(), kept=True, recorded=sources).dataset(folder)
    params = DecodingParams(**vars(config.decoding))
    embeddings = folder_embeddings(config.model.checkpoint_name_or_path)
    maker = RowMaker(config.data, params, dataset.is_openai, lora=config.lora, embeddings=embeddings)
    with closing(maker):
        for position, record in enumerate(dataset.records()):
            row = maker.make(position, record)
            if row.key != key:
                continue
            if isinstance(row, RowFailure):
                raise PromptError(f"{row.location}: {row.reason}")
            return row
    raise ConfigError(f"key={key}: no row of {config.data.path} has this key")
