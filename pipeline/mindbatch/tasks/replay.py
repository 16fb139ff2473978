"""`mindbatch replay`: one row of a run once more, compared with what the run has of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mindbatch.config.path_faults import folder_fault
from mindbatch.config.schema import SchemaKeys, option
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import data_output, printable, show
from mindbatch.run.batch_config import BatchConfig

if TYPE_CHECKING:
    from mindbatch.ledger.entries import Entry
    from mindbatch.llm import LLM
    from mindbatch.run.lookup import StoredRow


@dataclass
class ReplayConfig(BatchConfig):
    """The keys of `mindbatch replay`."""

    continues_run: ClassVar[bool] = True
    advises_sampling: ClassVar[bool] = False

    key: str | None = option(None, "key of the row to run again")

    def folder_fault(self, path: Path) -> str | None:
        return folder_fault(path)  # it is only read

    def run_faults(self, keys: SchemaKeys) -> Iterable[str]:
        yield from super().run_faults(keys)
        if not self.key:
            yield "key: must be given: the key of the row to run again"


def run(config: ReplayConfig) -> int:
    """Runs the task; returns the exit code: failed when the outcome is another one."""
    from mindbatch.ledger.run_folder import RunFolder  # these bring the engine: not needed for the keys
    from mindbatch.ledger.run_record import changes
    from mindbatch.llm import LLM
    from mindbatch.run.identity import fingerprint_fields
    from mindbatch.run.lookup import stored_row
    from mindbatch.run.manifest import computed_with, differences

    stored = stored_row(config, RunFolder(Path(config.output.dir or "")), config.key or "")
    with LLM.from_config(_with_one_replica(config)) as llm:
        again, now = _again(config, stored, llm), computed_with(config, llm.kernels)
    show(f"{printable(stored.row.source)}:{stored.row.line}: key {printable(stored.row.key)}")
    for change in changes(stored.record.fields, fingerprint_fields(config)):
        show(f"other settings: {printable(change)}")
    for change in differences(stored.computed_with, now):
        show(f"computed with: {printable(change)}")
    for line in _outcome(again):
        print(line, file=data_output())
    changed = _changed(stored.entry, again)
    show(printable(changed or "equal to the run"))
    return EXIT_FAILED if changed else EXIT_DONE


def _again(config: ReplayConfig, stored: StoredRow, llm: LLM) -> Entry:
    from mindbatch.decoding import DecodingParams
    from mindbatch.run.generation import entry_of

    row, params = stored.row, DecodingParams(**vars(config.decoding))
    prompt = row.prompt(config.data.date or stored.record.date)
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
    return [f"[{generation['index']}] {generation['text']}" for generation in entry.body["generations"]]


def _changed(before: Entry, after: Entry) -> str | None:
    """Describes in one line what is no longer as it was; None if nothing changed."""
    from mindbatch.tasks.diff.run_pair import difference

    if before.kind == after.kind == "result":
        changed = difference(before.body, after.body)
        if changed is None:
            return None
        place = "" if changed.token is None else f", first differing token {changed.token}"
        return f"changed: generation {changed.generation}{place}: {changed.first!r} -> {changed.second!r}"
    one, other = _named(before), _named(after)
    return None if one == other else f"changed: {one} -> {other}"


def _named(entry: Entry) -> str:
    return "a result" if entry.kind == "result" else f"error: {entry.body['reason']}"
