"""Writes the page to send back: versions, devices, and the result of each check."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mindbatch.io.children import run
from mindbatch.io.screen_text import printable

PASSED, FAILED, COMPILED, SKIPPED = "passed", "failed", "compiled", "skipped"
_PACKAGES = ("mindbatch", "mindspore", "mindformers", "numpy")
_CANN = Path("/usr/local/Ascend/ascend-toolkit/latest/version.cfg")
_SECONDS = 30


@dataclass(frozen=True)
class Result:
    """One check. part: operator, model, shipped model or devices. detail: the error, or the reason.

    log: what a failed command said.
    """

    part: str
    name: str
    dtype: str
    outcome: str
    detail: str
    log: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        return self.part, self.name, self.dtype, self.outcome, self.detail

    @property
    def line(self) -> str:
        """The result as a line for the terminal."""
        return f"{self.outcome:8}  {self.part} {self.name} {self.dtype}: {self.detail}"


def page(results: Sequence[Result], *, simulated: bool) -> str:
    """Writes the page in Markdown."""
    platform_text = "in simulation: compiled, nothing computed" if simulated else "on an NPU"
    counts = ", ".join(
        f"{sum(result.outcome == outcome for result in results)} {outcome}"
        for outcome in (PASSED, COMPILED, FAILED, SKIPPED)
    )
    rows = [f"| {' | '.join(map(_cell, result.cells))} |" for result in results]
    return "\n".join(
        [
            "# MindBatch on Ascend",
            "",
            f"Checked {platform_text}: {counts}.",
            "",
            *(f"- {name}: {value}" for name, value in _machine().items()),
            "",
            "| check | of | type | outcome | detail |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "Errors: the largest difference from float32 on a CPU, as a part of the largest number there.",
            *(line for result in results for line in _log(result)),
            *_devices(),
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _log(result: Result) -> Iterator[str]:
    """Yields logs, indented so that no line can end the block."""
    if result.log:
        yield from ("", f"Log of {result.part}, {result.name}:", "")
        yield from (f"    {printable(line)}" for line in result.log)


def _machine() -> dict[str, str]:
    versions = {"machine": platform.platform(), "Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    with suppress(OSError):
        versions["CANN"] = " ".join(_CANN.read_text(errors="replace").split())[:200]
    return versions


def _devices() -> list[str]:
    """Returns lines of npu-smi about the devices, if it is installed."""
    if (program := shutil.which("npu-smi")) is None:
        return []
    with suppress(OSError):  # includes TimeoutError
        return ["", "```", *run([program, "info"], _SECONDS).output.splitlines(), "```"]
    return []
