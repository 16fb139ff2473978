"""Formats of strings, composed after their standards; where validators differ, what all of them accept."""

from mindbatch.decoding.json_schema.terminals import either
from mindbatch.decoding.json_schema.texts import quoted

_H = "[0-9a-fA-F]"


def _dates() -> str:
    """Days of the calendar from 0001-01-01 (RFC 3339), with the leap years' 29 February."""
    year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
    fourth = "(?:0[48]|[2468][048]|[13579][26])"
    leap_year = f"(?:[0-9]{{2}}{fourth}|{fourth}00)"
    to_28 = "(?:0[1-9]|1[0-9]|2[0-8])"
    days = either([f"(?:0[1-9]|1[0-2])-{to_28}", "(?:0[13-9]|1[0-2])-(?:29|30)", "(?:0[13578]|1[02])-31"])
    return either([f"{year}-{days}", f"{leap_year}-02-29"])


def _times() -> str:
    """Times with an offset (RFC 3339); leap seconds, which few readers take, are left out."""
    hour_and_minute = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
    return rf"{hour_and_minute}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{hour_and_minute})"


def _units(letters: str) -> str:
    """Numbers with units of a duration, of which none is skipped between two (RFC 3339, appendix A)."""
    texts = []
    for first in range(len(letters)):
        text = ""
        for letter in reversed(letters[first:]):
            text = f"[0-9]{{1,9}}{letter}" + (f"(?:{text})?" if text else "")
        texts.append(text)
    return either(texts)


def _durations() -> str:
    date, time = _units("YMD"), f"T{_units('HMS')}"
    return "P" + either([f"{date}(?:{time})?", time, "[0-9]{1,9}W"])


def _ipv4() -> str:
    octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    return rf"{octet}(?:\.{octet}){{3}}"


def _ipv6() -> str:
    """Eight groups, or fewer around a double colon; the last two may be an IPv4 address (RFC 4291)."""
    group = f"{_H}{{1,4}}"

    def groups(fewest: int, max_count: int) -> list[str]:
        texts = [f"{group}(?::{group}){{{max(fewest, 1) - 1},{max_count - 1}}}"] if max_count >= 1 else []
        if max_count >= 2:
            texts.append(f"(?:{group}:){{{max(fewest - 2, 0)},{max_count - 2}}}{_ipv4()}")
        return texts

    texts = groups(8, 8)
    for before in range(8):
        left = f"{group}(?::{group}){{{before - 1}}}" if before else ""
        right = groups(0, 7 - before)
        texts.append(f"{left}::" + (f"{either(right)}?" if right else ""))
    return either(texts).replace("){0,0}", "){0}")


def _uris(*, is_reference: bool) -> str:
    """Absolute URIs by the grammar of RFC 3986; with relative ones if references are."""
    plain = r"a-zA-Z0-9._~!$&'()*+,;=\-"
    percent = f"%{_H}{{2}}"

    def characters(more: str) -> str:
        return f"(?:[{plain}{more}]|{percent})"

    host = either([rf"\[{_ipv6()}\]", f"{characters('')}*"])
    authority = f"(?:{characters(':')}*@)?{host}(?::[0-9]{{0,5}})?"
    segment, tail = characters(":@"), f"(?:/{characters(':@')}*)*"
    rooted = [f"//{authority}{tail}", f"/(?:{segment}+{tail})?", ""]
    text = f"[a-zA-Z][a-zA-Z0-9+.\\-]*:{either([*rooted, f'{segment}+{tail}'])}"
    if is_reference:  # a colon in its first segment would end a scheme
        text = either([text, *rooted, f"{characters('@')}+{tail}"])
    return f"{text}(?:\\?{characters(':@/?')}*)?(?:\\x{{23}}{characters(':@/?')}*)?"


def _joined(characters: str, mark: str, max_length: int) -> str:
    """Up to `max_length` characters, and a mark between any two of them."""
    return f"(?:[{characters}]{mark}?){{0,{max_length - 1}}}[{characters}]"


def _hostnames() -> str:
    """Labels without two hyphens in a row, which mark coded ones (RFC 5891); within 253 characters in all."""
    labels = {length: _joined("a-zA-Z0-9", "-", length) for length in (32, 31, 15)}
    counts = {32: 3, 31: 4, 15: 8}
    return either(rf"{labels[n]}(?:\.{labels[n]}){{0,{count - 1}}}" for n, count in counts.items())


def _addresses() -> str:
    """Mailboxes whose local part is words with dots (RFC 5321), at the name of a host."""
    return _joined(r"a-zA-Z0-9!\x{23}$%&'*+\x{2f}=?^_`{|}~\-", r"\.", 32) + "@" + _hostnames()


FORMATS = {
    name: quoted(pattern)
    for name, pattern in (
        ("date", _dates()),
        ("time", _times()),
        ("date-time", f"{_dates()}T{_times()}"),
        ("duration", _durations()),
        ("email", _addresses()),
        ("hostname", _hostnames()),
        ("ipv4", _ipv4()),
        ("ipv6", _ipv6()),
        ("uuid", "-".join(f"{_H}{{{size}}}" for size in (8, 4, 4, 4, 12))),
        *(
            (f"uuid{n}", f"{_H}{{8}}-{_H}{{4}}-{n}{_H}{{3}}-[89abAB]{_H}{{3}}-{_H}{{12}}")
            for n in range(1, 9)
        ),
        ("uri", _uris(is_reference=False)),
        ("iri", _uris(is_reference=False)),
        ("uri-reference", _uris(is_reference=True)),
        ("iri-reference", _uris(is_reference=True)),
        ("idn-email", _addresses()),
        ("ipvanyaddress", either([_ipv4(), _ipv6()])),
        ("json-pointer", r"(?:\x{2f}(?:[^~\x{2f}\x{22}\x{5c}\x{0}-\x{1f}]|~[01])*)*"),
    )
}
"""By name, an operand of a terminal: JSON Schema's, and those that pydantic writes beside them."""
UNSUPPORTED_FORMATS = frozenset({"idn-hostname", "regex", "relative-json-pointer", "uri-template"})
STANDARD_FORMATS = sorted(FORMATS.keys() | UNSUPPORTED_FORMATS)
