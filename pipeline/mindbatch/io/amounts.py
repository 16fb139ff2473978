"""Amounts as people read them: numbers with their nouns, memory, lengths of time."""

import re
from datetime import date


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def decimal(value: float, form: str) -> str:
    """A number by a format such as ".2f"; one that is 0 with these digits has no minus before it."""
    text = format(value, form)
    return text if text.strip("+-0.,%") else format(0.0, form)


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """An amount of memory as people read it."""
    for unit in _UNITS[:-1]:
        if round(count, 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units, or two digits of it."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 1:
        return f"{round(seconds, 3):.2g} s"
    if minutes < 2:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{int(hours)} h {int(minutes % 60)} min"


def per_second(count: float, seconds: float) -> float:
    """The mean rate; 0 where no time has passed."""
    return count / seconds if seconds > 0 else 0.0


DAY_RULE = "must be a day as YYYY-MM-DD, like 2026-07-31"
_FORM = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def today() -> str:
    """The local day, as YYYY-MM-DD."""
    return date.today().isoformat()


def is_day(text: str) -> bool:
    """True if the text is a day as YYYY-MM-DD."""
    try:
        return bool(_FORM.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False
