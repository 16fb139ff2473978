"""The page of a run: one HTML file that needs nothing else, no script and no network."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mindbatch.config.schema import schema_keys
from mindbatch.engine.request import EMBEDDING
from mindbatch.evaluation.charts import MeanSpeed, histogram, quantile, shares, timeline
from mindbatch.evaluation.rendering import page
from mindbatch.io.amounts import counted, duration, per_second, size
from mindbatch.io.screen_text import concealed
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, read_manifest
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.metrics import Snapshot, rates_between, read_samples
from mindbatch.tasks.runs.outcomes import NUM_ROWS, Outcomes, read_outcomes
from mindbatch.tasks.runs.prompts import prompts_of
from mindbatch.tasks.runs.run_state import RunState
from mindbatch.tasks.runs.schema import GENERATOR

MAX_ERROR_KINDS = 30
MAX_INTERVALS = 60
"""Limit of the intervals of a chart over time."""
SHORTEST_SECONDS = 0.001
"""Length of a session below which it has no speed."""
FOLDED = 500
"""Number of characters above which a text is folded."""
LONGEST_TEXT = 20_000
"""Limit of characters of a text on the page."""


def report_page(state: RunState) -> str:
    """Builds the whole page of a run; the same for the same files.

    Raises:
        ConfigError: there is no run, or its record or ledger is damaged, or of another format.
        StorageError: a file cannot be read.
    """
    folder = RunFolder(Path(state.folder))
    record, manifest = RunRecord.read(folder), read_manifest(folder)
    outcomes = read_outcomes(folder, record, is_complete=state.status == "complete")
    settings = manifest.get("settings")
    settings = concealed(settings) if isinstance(settings, dict) else {}
    return page(
        "run.html.j2",
        generator=GENERATOR,
        title=_title(state),
        facts=[*_facts(state, manifest)],
        notes=[*_notes(state, outcomes)],
        charts=[*_charts(outcomes), *_time_charts(folder)],
        outcomes=outcomes,
        kinds=outcomes.errors[:MAX_ERROR_KINDS],
        rows=[*_rows(outcomes.rows, prompts_of(folder, {entry.key for entry in outcomes.rows}))],
        num_rows=NUM_ROWS,
        command=shlex.join(state.command),
        changed=[*_changed(settings)],
        computed_with=[*_computed_with(manifest)],
        settings=json.dumps(settings, indent=2, ensure_ascii=False, default=str),
        counted=counted,
        folded=FOLDED,
        cut=_cut,
    )


def _title(state: RunState) -> str:
    name = Path(state.folder).absolute().name
    if state.total is None or state.done is None:
        return f"{name}: {state.status}"
    return f"{name}: {state.done:,} of {state.total:,} rows done"


def _facts(state: RunState, manifest: Mapping[str, Any]) -> Iterator[str]:
    yield state.status
    if state.created:
        yield f"begun {state.created[:16].replace('T', ' ')} UTC"
    match manifest:
        case {"seconds": float(seconds), "tokens": {"prompt": int(prompt), "generated": int(generated)}}:
            if seconds and state.status != "running":
                yield f"{duration(seconds)} of running"
                yield counted(prompt, "prompt token")
                speed = per_second(generated, seconds)
                yield f"{counted(generated, 'token')} generated ({speed:,.0f} tokens/s)"


def _notes(state: RunState, outcomes: Outcomes) -> Iterator[str]:
    if state.failed:
        yield f"{counted(state.failed, 'row')} failed."
    if state.status != "complete":
        yield (
            "The run is not complete: the page has the rows that have ended so far. Rows that cannot be read "
            "are listed at its end."
        )
    if not outcomes.is_whole:
        yield (
            f"Of the ledger, {size(outcomes.num_bytes)}, {size(outcomes.num_read)} were read, evenly spread: "
            "lengths, finish reasons and rows are of this sample, of "
            f"{counted(len(outcomes.prompt_tokens), 'row')} with a result."
        )


Chart = tuple[str, str, Markup]
"""Title, meaning and drawing."""


def _charts(outcomes: Outcomes) -> Iterator[Chart]:
    lengths = {"Prompt tokens": outcomes.prompt_tokens, "Output tokens": outcomes.output_tokens}
    for number, (title, values) in enumerate(lengths.items()):
        if any(values):
            yield title, _distribution(values), histogram(f"lengths-{number}", title, values)
    if outcomes.finish_reasons:
        title, meaning = "Finish reasons", f"Of {counted(outcomes.finish_reasons.total(), 'output')}."
        yield title, meaning, shares("finish-reasons", title, outcomes.finish_reasons)


def _distribution(values: Sequence[int]) -> str:
    ordered = sorted(values)
    parts = (("median", 0.5), ("90%", 0.9), ("99%", 0.99))
    named = ", ".join(f"{name} {quantile(ordered, share):,}" for name, share in parts)
    return f"{named}, longest {ordered[-1]:,}; {sum(values):,} in all."


def _time_charts(folder: RunFolder) -> Iterator[Chart]:
    sessions = _sessions(folder)
    seconds = sum(session[-1].seconds - session[0].seconds for session in sessions)
    if not seconds:
        return
    resumed = " A dashed line is where it was resumed." if len(sessions) > 1 else ""
    speeds = {"Generated tokens per second": "generated_tokens", "Rows per second": "rows"}
    for number, (title, rate) in enumerate(speeds.items()):
        intervals = [*_intervals(sessions, rate, seconds / MAX_INTERVALS)]
        if any(interval.speed for session in intervals for interval in session):
            yield title, f"Over the time of running.{resumed}", timeline(f"speed-{number}", title, intervals)


def _sessions(folder: RunFolder) -> list[list[Snapshot]]:
    """Divides the samples of a run by its sessions; very short ones have no speed."""
    sessions: list[list[Snapshot]] = []
    for _, snapshot in read_samples(folder.metrics):
        if not sessions or snapshot.seconds < sessions[-1][-1].seconds:
            sessions.append([])
        sessions[-1].append(snapshot)
    return [session for session in sessions if session[-1].seconds - session[0].seconds >= SHORTEST_SECONDS]


def _intervals(
    sessions: Sequence[Sequence[Snapshot]], rate: str, shortest: float
) -> Iterator[list[MeanSpeed]]:
    """Yields the mean speeds of each session, one after the other without the time between them."""
    begin = 0.0
    for session in sessions:
        ends = [session[0]]
        for snapshot in session:
            if snapshot.seconds - ends[-1].seconds >= shortest:
                ends.append(snapshot)
        if ends[-1] is not session[-1]:
            ends[len(ends) - (len(ends) > 1) :] = [session[-1]]  # the last interval takes the rest
        offset = begin - session[0].seconds
        yield [
            MeanSpeed(start.seconds + offset, end.seconds + offset, getattr(rates_between(start, end), rate))
            for start, end in pairwise(ends)
        ]
        begin = session[-1].seconds + offset


def _rows(entries: Sequence[Entry], prompts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        row: dict[str, Any] = {"key": entry.key, "prompt": prompts.get(entry.key), "outputs": []}
        if entry.kind == "error":
            yield {**row, "error": f"{entry.body.get('stage')}: {entry.body.get('reason')}", "facts": ""}
            continue
        row["outputs"] = [_output(generation) for generation in entry.body["generations"]]
        yield {**row, "error": None, "facts": counted(entry.body["prompt_tokens"], "prompt token")}


def _output(generation: Mapping[str, Any]) -> tuple[str | None, str]:
    """Returns the text of a generation, None of an embedding, and one line on it."""
    facts = [counted(len(generation["token_ids"]), "token"), f"finish reason {generation['finish_reason']}"]
    if EMBEDDING in generation:
        return None, f"embedding of {counted(len(generation[EMBEDDING]), 'number')}"
    return generation["text"], " · ".join(facts)


def _changed(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the settings that differ from their defaults, as they are typed."""
    for name, key in schema_keys(BatchConfig).keys.items():
        value: Any = settings
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and value != key.default and not (value == [] and key.default == ()):
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _computed_with(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each way in which rows were computed, and one of the versions."""
    match manifest:
        case {"computed_with": [*kinds]}:
            for kind in kinds:
                match kind:
                    case {"rows": int(rows), **settings}:
                        named = ", ".join(f"{name} {value}" for name, value in settings.items())
                        yield f"{counted(rows, 'row')} computed with {named}"
    match manifest:
        case {"versions": dict(versions)}:
            yield ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
