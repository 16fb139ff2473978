"""Extras that pip installs, and that are named everywhere by the names they have."""

import re
from pathlib import Path

from mindbatch.lm_eval import MISSING

CHECKOUT = Path(__file__).parents[2]
PROJECT = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = re.findall(r"^(\S+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0], re.M)


def test_extras_have_names_that_every_pip_finds() -> None:
    """pip before 23.3 compares the name that is asked for with the normalised one of the metadata."""
    assert "lm-eval" in EXTRAS
    assert [name for name in EXTRAS if re.sub(r"[-_.]+", "-", name).lower() != name] == []


def test_texts_name_extras_that_there_are() -> None:
    files = [CHECKOUT / name for name in ("README.md", "constraints.txt")]
    files += [*(CHECKOUT / "docs").glob("*.md"), *(CHECKOUT / "tests").rglob("*.py")]
    texts = [MISSING, *(file.read_text(encoding="utf-8") for file in files)]
    named = {
        name for text in texts for name in re.findall(r"(?:\.|\.whl|mindbatch)\[([\w.-]+)\]['`\"]", text)
    }
    assert "lm-eval" in named
    assert named <= {*EXTRAS}
