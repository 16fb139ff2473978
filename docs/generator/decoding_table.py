"""Writes the table of parameters in docs/decoding.md, from what is declared with `DecodingParams`.

python docs/generator/decoding_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindbatch.decoding.params import PARAMETERS

PAGE = Path(__file__).parents[1] / "decoding.md"
HEADS = ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]


def table() -> str:
    """The table, a row for each parameter."""
    rows = [
        f"| `{name}` | {_default(declared.default)} | {_escaped(declared.kind.takes)} | "
        f"{_escaped(declared.meaning)} |"
        for name, declared in PARAMETERS.items()
    ]
    return "\n".join([*HEADS, *rows])


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(HEADS[0])
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n\n{after}"


def _default(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
