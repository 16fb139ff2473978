"""The loop at the heart of a run: rows into the model, what comes back into the ledger."""

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Generator as Steps
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from mindbatch.dataset.rows import DataRow
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import RequestOutput
from mindbatch.engine.result_json import result_body
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.interrupts import interruptible
from mindbatch.io.screen_text import without_hidden
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Entry, Kind
from mindbatch.ledger.ledger import Ledger
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.index import RowIndex


class Generator(Protocol):
    """Runner of rows: an `LLM`, or a stand-in for it."""

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Steps[StepResult, None, None]:
        """Runs the rows; yields the result of each step."""
        ...

    @property
    def kernels(self) -> str: ...

    def take_notes(self) -> list[str]: ...

    @property
    def statistics(self) -> EngineStatistics:
        """Counts since the generator was made."""
        ...


@dataclass
class Tally:
    """Rows that were finished in this session.

    last_error: the place and the reason of the last one that failed.
    """

    done: int = 0
    failed: int = 0
    last_error: str = ""


def generate(
    generator: Generator,
    index: RowIndex,
    ledger: Ledger,
    params: DecodingParams,
    on_step: Callable[[Tally], None],
    date: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Runs every pending row of the index. However it ends, what was finished until then is in the ledger.

    on_step: called after every step of the engine. date: what chat templates are told; see `Prompt`.

    Raises:
        StorageError: the ledger cannot be written; what was committed before is safe.
    """
    asked: dict[str, DataRow] = {}
    tally = Tally()
    try:
        with closing(generator.steps(_rows(index, params, asked, date))) as steps:
            before = clock()
            for step in steps:
                with interruptible():
                    for output in step.finished:
                        _record(output, asked.pop(output.key), index, ledger, tally)
                    ledger.commit_if_due(clock() - before)
                before = clock()
                on_step(tally)
    except StorageError:
        raise
    except BaseException:
        _commit(ledger)
        raise
    _commit(ledger)


def _commit(ledger: Ledger) -> None:
    with interruptible():  # a second Ctrl-C waits until the rows are safe
        ledger.commit()


def _rows(
    index: RowIndex, params: DecodingParams, asked: dict[str, DataRow], date: str | None
) -> Iterator[tuple[Prompt, DecodingParams]]:
    for row in index.pending():
        asked[row.key] = row
        yield row.prompt(date), row.params(params)


def _record(output: RequestOutput, row: DataRow, index: RowIndex, ledger: Ledger, tally: Tally) -> None:
    entry = entry_of(output, row)
    index.mark(entry.key, entry.kind, ledger.append(entry))
    if entry.kind == "result":
        tally.done += 1
    else:
        tally.failed += 1
        tally.last_error = f"{row.place}: {entry.body['reason']}"


def entry_of(output: RequestOutput, row: DataRow) -> Entry:
    return Entry(output.key, row.digest, *outcome_of(output, row.place))


def outcome_of(output: RequestOutput, source: str) -> tuple[Kind, dict[str, Any]]:
    """Returns kind and content of a row's result. Neither depends on when or with what it was computed."""
    if output.error is not None:
        reason = without_hidden(output.error.removeprefix(f"{source}: "))
        return "error", {"stage": output.stage, "reason": reason}
    return "result", result_body(output)
