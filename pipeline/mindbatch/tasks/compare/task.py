"""`mindbatch compare`: the same prompts under several decoding strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mindbatch.config.composition import save_config
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.evaluation.comparison import Comparison, Setup, compare
from mindbatch.evaluation.page import page
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.hidden_values import without_hidden
from mindbatch.io.screen_text import data_output, say
from mindbatch.io.storage import make_folder, write_whole
from mindbatch.llm import LLM
from mindbatch.prompts.prompts import PromptRows
from mindbatch.tasks.compare.page import compare_page
from mindbatch.tasks.compare.runs import run_strategies
from mindbatch.tasks.compare.schema import COMPARISON_FILES, CompareConfig
from mindbatch.tasks.loading_line import LoadingLine

BATCHES_WARMED_UP = 2
"""Prompts of the warm-up, in batches: the first makes room as it ends, and the second comes in beside it."""


def run(config: CompareConfig) -> int:
    """Runs the task; returns the exit code: failed when any prompt could not be run."""
    strategies = {
        name: DecodingParams(**dataclasses.asdict(decoding)) for name, decoding in config.variants.items()
    }
    rows = config.prompt_rows()
    with LoadingLine() as line:
        llm = LLM.from_config(config, line)
    setup = _setup(config, rows)
    runs = run_strategies(llm, strategies, rows, setup.warm_up_prompts, config.timings)
    comparison = compare(setup, runs, has_text=llm.tokenizer is not None)
    folder = config.output.dir
    written = [] if folder is None else _write(comparison, config, Path(folder), {"date": rows.date})
    if config.output.format == "json":
        print(comparison.as_json().decode(), file=data_output())
    else:
        print(compare_page(comparison, config.limit))
    say(*(f"written {path}" for path in written))
    return _report_failures([result for run in runs for result in run.results])


def _setup(config: CompareConfig, rows: PromptRows) -> Setup:
    most = BATCHES_WARMED_UP * config.model.batch_size
    return Setup(
        model=without_hidden(config.model.checkpoint_name_or_path or ""),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        batch_size=config.model.batch_size,
        prefix_caching=config.runtime.prefix_caching,
        warm_up_prompts=min(most, len(rows.prompts)) if config.warm_up else 0,
    )


def _write(
    comparison: Comparison, config: CompareConfig, folder: Path, fixed: Mapping[str, Any]
) -> list[Path]:
    """Writes the files of the comparison; those of an earlier one are replaced. Raises StorageError.

    fixed: see `save_config`.
    """
    make_folder(folder)
    data, html, saved = (folder / name for name in COMPARISON_FILES)
    write_whole(data, comparison.as_json() + b"\n")
    write_whole(html, page(comparison).encode())
    save_config(config, saved, fixed=fixed)
    return [data, html]


def _report_failures(results: Sequence[RequestOutput]) -> int:
    """Says once for each prompt why it could not be run, whatever the strategies that it failed with."""
    failures = {(int(result.key), result.error): result.error for result in results if result.error}
    say(*(failures[key] for key in sorted(failures, key=lambda failure: failure[0])))
    return EXIT_FAILED if failures else EXIT_DONE
