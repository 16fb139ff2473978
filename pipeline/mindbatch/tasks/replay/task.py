"""`mindbatch replay`: one row of a run once more, compared with what the run has of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import data_output, printable, show
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import changes
from mindbatch.llm import LLM
from mindbatch.run.generation import entry_of
from mindbatch.run.identity import fingerprint_fields
from mindbatch.run.lookup import StoredRow, stored_row
from mindbatch.run.manifest import computed_with, differences
from mindbatch.tasks.diff.row_difference import difference
from mindbatch.tasks.replay.schema import ReplayConfig


def run(config: ReplayConfig) -> int:
    """Runs the task; returns the exit code: failed when the outcome is another one."""
    stored = stored_row(config, RunFolder(Path(config.output.dir or "")), config.key or "")
    with LLM.from_config(_with_one_replica(config)) as llm:
        again, now = _again(config, stored, llm), computed_with(config, llm.kernels)
    show(f"{printable(stored.row.source)}:{stored.row.line}: key {printable(stored.row.key)}")
    for change in changes(stored.record.fields, fingerprint_fields(config)):
        show(f"other settings: {printable(change)}")
    for change in differences(stored.computed_with or now, now):
        show(f"computed with: {printable(change)}")
    for line in _outcome(again):
        print(line, file=data_output())
    found = _changed(stored.entry, again)
    show(printable(found or "equal to the run"))
    return EXIT_FAILED if found else EXIT_DONE


def _again(config: ReplayConfig, stored: StoredRow, llm: LLM) -> Entry:
    row, params = stored.row, DecodingParams(**vars(config.decoding))
    prompt = row.prompt(config.data.date or stored.record.chat_date)
    finished = [done for step in llm.steps([(prompt, row.params(params))]) for done in step.finished]
    return entry_of(finished[0], prompt.source, row.digest)


def _with_one_replica(config: ReplayConfig) -> ReplayConfig:
    """One row keeps no second one busy, and none changes what comes out; unless the processes are counted."""
    counted = config.launch.worker_num is not None or config.launch.local_worker_num is not None
    if counted or config.parallel.data_parallel == 1:
        return config
    return replace(config, parallel=replace(config.parallel, data_parallel=1))


def _outcome(entry: Entry) -> list[str]:
    if entry.kind == "error":
        return [_named(entry)]
    return [f"[{each['index']}] {each['text']}" for each in entry.body["generations"]]


def _changed(before: Entry, after: Entry) -> str | None:
    """Describes in one line what is no longer as it was; None if nothing changed."""
    if before.kind == after.kind == "result":
        found = difference(before.body, after.body)
        if found is None:
            return None
        place = "" if found.token is None else f", first differing token {found.token}"
        return f"changed: generation {found.generation}{place}: {found.first!r} -> {found.second!r}"
    one, other = _named(before), _named(after)
    return None if one == other else f"changed: {one} -> {other}"


def _named(entry: Entry) -> str:
    return "a result" if entry.kind == "result" else f"error: {entry.body['reason']}"
