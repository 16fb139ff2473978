"""Checks MindBatch on an NPU, or with --simulate that it would start there, and writes one page to send back.

    bash scripts/ascend_check.sh                    # on a machine with an NPU
    bash scripts/ascend_check.sh --simulate --models qwen3

Fused operators are compared with NumPy, tiny models of every type and of MindFormers' families with logits
recorded on a CPU, the shipped model's text with what this machine's CPU generates, and its tokens over two
devices with recorded ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ascend_check.models import NAMES
from ascend_check.page import FAILED, PASSED, SKIPPED, Result, page
from ascend_check.two_devices import CommandError, said_by
from mindbatch.config.environment import configure_process, prepare_environment
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, MindBatchError
from mindbatch.io.screen_text import printable, run_tool, say, show
from mindbatch.io.storage import write_whole
from mindbatch.io.tool_parser import ToolParser
from mindbatch.kernels.memory import DTYPES

NAME = "ascend_check"
PAGE = "ascend_check.md"
_SECONDS = 600
_SHIPPED = ("model=tiny_gpt2", 'prompts=["An increasing sequence: one,"]', "decoding.max_new_tokens=60")


def main(arguments: list[str] | None = None) -> int:
    """Writes the page; the exit code is 1 if a check failed or could not run."""
    configure_process()
    options = parser().parse_args(arguments)
    done: list[Result] = []
    try:
        for result in _results(options.simulate, options.dtypes, options.models):
            done.append(result)
            show(printable(result.line))
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        done += [Result("devices", "Ascend", "", FAILED, problem) for problem in error.lines]
    write_whole(Path(options.page), page(done, simulated=options.simulate).encode())
    show(printable(f"{options.page}: the page to send back"))
    return EXIT_FAILED if any(result.outcome == FAILED for result in done) else EXIT_DONE


def parser() -> ToolParser:
    options = ToolParser(prog=NAME, description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--simulate", action="store_true", help="compile only, without an NPU")
    types = [number_type.name for number_type in DTYPES["Ascend"]]
    options.add_argument("--dtypes", nargs="+", choices=types, default=types, help="types to check")
    options.add_argument("--models", nargs="*", choices=NAMES, default=NAMES, help="tiny models to check")
    options.add_argument("--page", default=PAGE, help="file to write")
    return options


def _results(simulated: bool, dtypes: list[str], models: list[str]) -> Iterator[Result]:
    """Runs the checks; those in this process are last, because it keeps its device."""
    prepare_environment()
    from ascend_check import two_devices, worker
    from mindbatch.ascend_simulation.process import simulate

    yield _shipped(simulated)
    yield two_devices.compile_graphs() if simulated else two_devices.run_on_npus()
    for dtype in dtypes:
        platform = worker.SIMULATED if simulated else "real"
        fields_of_results = (
            simulate(worker.results, platform, dtype, *models)
            if simulated
            else worker.results(platform, dtype, *models)
        )
        yield from (Result(**fields) for fields in fields_of_results)


def _shipped(simulated: bool) -> Result:
    """Compares the text of the shipped model on the NPU and on this machine's CPU."""
    if simulated:
        return Result("shipped model", "tiny_gpt2", "", SKIPPED, "a simulation computes no text")
    try:
        texts = [_generated(device) for device in ("CPU", "Ascend")]
    except CommandError as error:
        return Result("shipped model", "tiny_gpt2", "bfloat16", FAILED, str(error), error.log)
    outcome = PASSED if texts[0] == texts[1] else FAILED
    return Result("shipped model", "tiny_gpt2", "bfloat16", outcome, " / ".join(map(repr, texts)))


def _generated(device: str) -> str:
    return said_by("generate", *_SHIPPED, f"runtime.device_target={device}", seconds=_SECONDS).strip()


if __name__ == "__main__":
    run_tool(main, NAME)
