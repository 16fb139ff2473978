"""Which devices of a server take part: ranges like [0,8), lists, and lists of visible devices."""

import re

MOST_DEVICES = 1024
"""On one server; far above any, so that a slip of the finger does not fill the disk."""

_RANGE = re.compile(r"\[\s*(\d{1,6})\s*,\s*(\d{1,6})\s*([\])])", re.ASCII)
_LIST = re.compile(r"\d{1,6}(?:\s*,\s*\d{1,6})*", re.ASCII)


def parse_range(text: str) -> tuple[list[int], str | None]:
    """The numbers of [A,B) or [A,B], and a line to be shown where the bracket could mislead.

    The end is exclusive whatever the bracket, as run_dist_gen.sh and MindFormers' hccl_tools.py have it.
    Raises ValueError for anything else and for a range without numbers.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a range of devices like [0,8)")
    begin, end = int(match[1]), int(match[2])
    if begin >= end:
        raise ValueError("holds no device; the end is exclusive and must be above the beginning")
    if end > MOST_DEVICES:
        raise ValueError(f"a server has no more than {MOST_DEVICES} devices")
    return list(range(begin, end)), _bracket_note(begin, end) if match[3] == "]" else None


def _bracket_note(begin: int, end: int) -> str:
    which = f"device {begin} alone" if end == begin + 1 else f"devices {begin} to {end - 1}"
    return (
        f"the end is exclusive whatever the bracket, as in run_dist_gen.sh: {which}; "
        f"write [{begin},{end}) for these, [{begin},{end + 1}) with device {end}"
    )


def parse_devices(text: str) -> tuple[list[int], str | None]:
    """The same for a range or a list like 0,2,4, whose order is kept. Raises ValueError."""
    if not _LIST.fullmatch(text.strip()):
        try:
            return parse_range(text)
        except ValueError as error:
            hint = " or a list like 0,2,4" if "range" in str(error) else ""
            raise ValueError(f"{error}{hint}") from None
    return parse_list(text), None


def parse_list(text: str) -> list[int]:
    """The numbers of a list like 4,5,6,7, each once. Raises ValueError."""
    if not _LIST.fullmatch(text.strip()):
        raise ValueError("must be a list of devices like 4,5,6,7")
    numbers = [int(part) for part in text.split(",")]
    if repeated := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"device {repeated[0]} appears twice")
    if max(numbers) >= MOST_DEVICES or len(numbers) > MOST_DEVICES:
        raise ValueError(f"a server has no more than {MOST_DEVICES} devices")
    return numbers


def physical_devices(logical: list[int], visible: list[int] | None) -> list[int]:
    """The physical ids of logical ones: `visible[n]` is that of n, and without a list they are the same.

    Raises ValueError naming those that are not visible.
    """
    if visible is None:
        return logical
    hidden = [number for number in logical if number >= len(visible)]
    if hidden:
        raise ValueError(
            f"device {', '.join(map(str, hidden))}: not there; {len(visible)} visible devices are numbered "
            f"0 to {len(visible) - 1}"
        )
    return [visible[number] for number in logical]
