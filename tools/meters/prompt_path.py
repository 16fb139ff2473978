"""Lists the modules that a prompt passes on its way from the command line of `generate` to its text, or a row
of `batch` from its file to its line of results.

    python tools/meters/prompt_path.py [batch]

A module is on the way if one of its functions is called with the prompt in hand: its text, or something that
carries the text, the tokens or what came of them (CARRIERS). docs/architecture.md has the number.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

PROMPT = "An increasing sequence: one,"
ARGUMENTS = ["generate", "model=tiny_gpt2", f'prompts=["{PROMPT}"]', "decoding.max_new_tokens=8"]
CARRIERS = frozenset(
    {
        *("GenerateConfig", "Prompt", "PromptRows", "Request", "Row", "GroupView"),
        *("Sequence", "SequenceGroup", "ScheduledTokens", "Step", "Batch", "StepTensors"),
        *("Decision", "Branch", "StepResult", "StreamEvent", "CompletionOutput", "RequestOutput"),
        *("Record", "RowDraft", "DataRow"),
    }
)
PACKAGE = Path(__file__).parents[2] / "pipeline/mindbatch"
NOT_CALLED = {"<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}


def carries(value: Any, depth: int = 2) -> bool:
    """True if a value is the prompt, or an object or list that contains it."""
    if isinstance(value, str):
        return PROMPT in value
    if isinstance(value, list | tuple) and depth > 0 and type(value).__name__ not in CARRIERS:
        return any(carries(item, depth - 1) for item in value[:4])
    return type(value).__name__ in CARRIERS


class Way:
    """The modules that were passed, in order, with the functions that had the prompt."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, None]] = {}

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Notes the module of a frame; sys.setprofile calls it."""
        code = frame.f_code
        if event != "call" or code.co_name in NOT_CALLED or not code.co_filename.startswith(str(PACKAGE)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(carries(frame.f_locals.get(name)) for name in names):
            module = str(Path(code.co_filename).relative_to(PACKAGE))
            self.functions.setdefault(module, {})[code.co_name] = None

    def lines(self) -> Iterable[str]:
        """A line for each module, and the number of them."""
        for module, functions in self.functions.items():
            yield f"{module}: {', '.join(functions)}"
        yield f"{len(self.functions)} modules"


def batch_arguments(folder: Path) -> list[str]:
    """A run of one row over the shipped model, in `folder`."""
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": PROMPT}) + "\n")
    return ["batch", "model=tiny_gpt2", f"data.path={rows}", f"output.dir={folder / 'run'}", "progress=none"]


def main() -> int:
    from mindbatch.cli import main as mindbatch

    way = Way()
    with tempfile.TemporaryDirectory() as folder:
        arguments = batch_arguments(Path(folder)) if sys.argv[1:] == ["batch"] else ARGUMENTS
        threading.setprofile(way.note)
        sys.setprofile(way.note)
        code = mindbatch(arguments)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    print("\n".join(way.lines()))
    return code


if __name__ == "__main__":
    sys.exit(main())
