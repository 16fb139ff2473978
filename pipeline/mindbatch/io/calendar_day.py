"""Days as YYYY-MM-DD: what the clock of a chat template says is one day for a whole run."""

from __future__ import annotations

import re
from datetime import date, datetime

DAY_RULE = "must be a day as YYYY-MM-DD, like 2026-07-31"
_FORM = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def today() -> str:
    """The local day, as YYYY-MM-DD."""
    return date.today().isoformat()


def day_of(moment: str) -> str:
    """The local day of a moment in ISO 8601; today where it is none."""
    try:
        return datetime.fromisoformat(moment).astimezone().date().isoformat()
    except ValueError:
        return today()


def is_day(text: str) -> bool:
    """True if the text is a day as YYYY-MM-DD."""
    try:
        return bool(_FORM.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False
