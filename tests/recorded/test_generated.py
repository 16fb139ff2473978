"""Every way of decoding gives the recorded bits with any versions of the packages, on every processor with
multiply-adds, and the same ones in all environments of this checkout.

`python tests/recorded/test_generated.py FOLDER` records what the Python that runs it gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch.kernels.native_library import find_library

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("generated.py")
RECORDED = Path(__file__).with_name("generated.json")
OTHERS = [
    python
    for python in sorted(CHECKOUT.glob(".venv*/bin/python"))
    if python.exists()  # not so in a test of the wheel, in a Debian of its own
    and python.parents[1] != Path(sys.prefix)
    and (python.parents[1] / "installed-for-test").is_file()
]
"""Of the other environments that scripts/test.sh has made: with the oldest packages, the newest..."""
OF_NUMPY = " NumPy"
"""Jobs that NumPy computes, whose sums are of its own making: their last digits are those of its version."""
DIGITS = 0.05
"""By which log probabilities may differ where bits do: plain x86, and NumPy."""


def generated_by(python: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    command = [str(python), "-I", str(PROGRAM), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return generated_by(Path(sys.executable), tmp_path_factory.mktemp("here"))


def agree(one: list[dict[str, Any]], other: list[dict[str, Any]], digits: float) -> None:
    assert [output["tokens"] for output in one] == [output["tokens"] for output in other]
    for mine, theirs in zip(one, other, strict=True):
        values = float.fromhex(mine["logprob"]), float.fromhex(theirs["logprob"])
        assert values[0] == pytest.approx(values[1], rel=digits, abs=digits)


def test_the_outputs_are_the_recorded_ones(here: dict[str, list[dict[str, Any]]]) -> None:
    recorded = json.loads(RECORDED.read_text())
    assert here.keys() == recorded.keys()
    library = find_library()
    has_bits = library is not None and library.variant != "portable"
    for job, outputs in recorded.items():
        agree(here[job], outputs, DIGITS)
        if has_bits and not job.endswith(OF_NUMPY):
            assert here[job] == outputs, job


@pytest.mark.parametrize("python", OTHERS, ids=lambda python: python.parents[1].name)
def test_the_bits_are_those_of_the_other_environments(
    python: Path, here: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    there = generated_by(python, tmp_path)
    for job, outputs in here.items():
        if job.endswith(OF_NUMPY):
            agree(outputs, there[job], 1e-5)
        else:
            assert outputs == there[job], job


if __name__ == "__main__":
    found = generated_by(Path(sys.executable), Path(sys.argv[1]))
    RECORDED.write_text(json.dumps(found, indent=None, separators=(",", ":")).replace("],", "],\n") + "\n")
