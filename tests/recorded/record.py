"""Compares what the recorded commands give with what was recorded, or records it anew.

    PYTHONPATH=tests python -m recorded.record                       all, with this checkout
    PYTHONPATH=tests python -m recorded.record NAME ... --update     records these anew, on purpose
    PYTHONPATH=tests python -m recorded.record --checkout OTHER      another checkout, with its own .venv
    ... --keep DIR                                                   what each command leaves goes to DIR too

commands.yaml lists the commands; `expected/` has a transcript for each entry: exit codes, outputs and every
file that is new or changed, after the rules of normalise.py. They hold
texts: of errors, of one help page, of one configuration. Numbers and files are the business of other tests.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from recorded.prepare import prepare
from recorded.transcript import HERE, Checkout, Entry, read_entries, transcript_of

ROOT = HERE.parents[1]
EXPECTED = HERE / "expected"
PROCESSES = 2


@contextmanager
def prepared_checkout(root: Path = ROOT) -> Iterator[Checkout]:
    """The checkout with its interpreter, that of its .venv if it has one, and the prepared models."""
    own = root / ".venv/bin/python"
    with tempfile.TemporaryDirectory(prefix="recorded-models-") as made:
        prepare(Path(made), root / "examples/tiny_gpt2")
        yield Checkout(root, own if own.exists() else Path(sys.executable), Path(made))


def expected_of(entry: Entry) -> Path:
    """The file with the recorded transcript."""
    return EXPECTED / f"{entry.name}.txt"


def difference(entry: Entry, found: str) -> str:
    """Lines that were recorded (-) and are there now (+); empty if nothing differs."""
    file = expected_of(entry)
    recorded = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        recorded.splitlines(),
        found.splitlines(),
        f"{entry.name}: recorded",
        f"{entry.name}: now",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """0 if everything is as recorded, or was recorded; 1 if something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="entries of commands.yaml; all of them")
    parser.add_argument("--update", action="store_true", help="write down what is there now")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout that is run")
    parser.add_argument("--keep", type=Path, help="a folder that gets what each command leaves")
    options = parser.parse_args(words)
    entries = read_entries()
    unknown = {*options.names} - {entry.name for entry in entries}
    if unknown:
        parser.error(f"no such entry: {', '.join(sorted(unknown))}")
    chosen = [entry for entry in entries if not options.names or entry.name in options.names]
    different = 0
    with prepared_checkout(options.checkout.absolute()) as checkout, ThreadPoolExecutor(PROCESSES) as pool:
        found = pool.map(lambda entry: transcript_of(entry, checkout, options.keep), chosen)
        for entry, transcript in zip(chosen, found, strict=True):
            changed = difference(entry, transcript)
            different += bool(changed)
            if changed:
                print(changed, flush=True)
            if options.update:
                EXPECTED.mkdir(exist_ok=True)
                expected_of(entry).write_text(transcript, encoding="utf-8")
    print(f"{len(chosen)} entries, {different} {'recorded anew' if options.update else 'different'}")
    return 0 if options.update or not different else 1


if __name__ == "__main__":
    sys.exit(main())
