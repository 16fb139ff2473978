"""Changes a good file at random: bytes, the values of JSON, and what carries checks of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

Mutation = Callable[[Random, bytes], bytes]

_TOKENS = (
    b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\n", b"\r", b"\r\n",
    b'"', b"'", b",", b":", b"{", b"}", b"[", b"]", b"\\", b"\\ud800", b"\xe2\x80\xa8", b"\x1b[2J", b"{{",
    b"{%", b"..", b"/", b"=", b"${x}", b"1e999", b"NaN", b"null", b"-", b"9" * 5000, b"A" * 70_000,
)  # fmt: skip
_NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_VALUES = (
    "null", "true", "false", "0", "1", "-1", "2", "3", "-0.0", "0.5", "1.5", "1e999", "-1e999", "1e-400",
    "1e6", "NaN", "Infinity", "1" * 400, "9" * 5000, *map(str, _NUMBERS), str(-(2**31)), str(-(2**63)),
    str(10**20), "1000000", "100000000", '""', '"0"', '"-1"', '"a"', '"NaN"', '"null"', '"../../x"',
    '"/etc/passwd"', '"."', '"-"', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u2028"', '"\\u202e"',
    '"\\u001b[2J\\n"', '"*"', '"(a+)+$"', '"{{ x }}"', '"' + "A" * 100_000 + '"', '"' + "界" * 3000 + '"',
    "[]", "{}", "[[]]", "[null]", "[0]", "[-1]", "[1.5]", '["a"]', '[""]', "[[0], 1]", '{"": null}',
    '{"a": {"a": []}}', "[" * 90 + "]" * 90, "[" * 100_000 + "]" * 100_000,
    '{"a":' * 3000 + "1" + "}" * 3000, "[" + ",".join(["0"] * 5000) + "]",
    "{" + ",".join(f'"k{number}":1' for number in range(3000)) + "}",
)  # fmt: skip


class _Raw(NamedTuple):
    """A value as text, so that it may be what no JSON library writes."""

    text: str


class _Pairs(list[list[Any]]):
    """An object that may have a key twice."""


def of_bytes(random: Random, content: bytes) -> bytes:
    """One to four changes of bytes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(_BYTE_CHANGES)(random, content)
    return content


def of_json(random: Random, content: bytes) -> bytes:
    """One to three other values, keys or places; a few times bytes of the text."""
    if random.random() < 0.15:
        return of_bytes(random, content)
    document = json.loads(content, object_pairs_hook=lambda pairs: _Pairs(map(list, pairs)))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = _changed(random, document)
    return _text(document).encode("utf-8", "surrogatepass")


def of_lines(line: Mutation) -> Mutation:
    """One line changed so, or the bytes of the file."""

    def change(random: Random, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if random.random() < 0.3 or not lines:
            return of_bytes(random, content)
        place = random.randrange(len(lines))
        end = b"\n" if lines[place].endswith(b"\n") else b""
        lines[place] = line(random, lines[place].rstrip(b"\n")) + end
        return b"".join(lines)

    return change


def of_safetensors(random: Random, content: bytes) -> bytes:
    """The header as JSON, its length told right; or bytes."""
    if random.random() < 0.3:
        return of_bytes(random, content)
    size = int.from_bytes(content[:8], "little")
    header = of_json(random, content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _changed(random: Random, document: Any) -> Any:
    places = _places(document)
    if not places or random.random() < 0.02:
        return _Raw(random.choice(_VALUES))
    holder, at = random.choice(places)
    value = holder[at][1] if isinstance(holder, _Pairs) else holder[at]
    match random.randrange(8):
        case 0:
            del holder[at]
        case 1:
            holder.insert(random.randrange(len(holder) + 1), holder[at])
        case 2 if isinstance(holder, _Pairs):
            holder[at] = [random.choice((value, "a", "", "\ud800", "\0", "../x", "A" * 5000)), value]
        case 3 if isinstance(holder, _Pairs):
            holder.append([random.choice(("x", "", holder[at][0], "\x1b[2J", "__class__")), _odd(random)])
        case 4:
            other, place = random.choice(places)
            moved = other[place][1] if isinstance(other, _Pairs) else other[place]
            _put(holder, at, _Raw(_text(moved)))
        case 5:
            _put(holder, at, random.choice(([value], _Pairs([["a", value]]), _Raw(json.dumps(_text(value))))))
        case _:
            _put(holder, at, _odd(random, value))
    return document


def _put(holder: list[Any], at: int, value: Any) -> None:
    if isinstance(holder, _Pairs):
        holder[at] = [holder[at][0], value]
    else:
        holder[at] = value


def _odd(random: Random, value: Any = None) -> Any:
    """Another value; of a number sometimes one near it, of a text one that contains it."""
    chance = random.random()
    if isinstance(value, int) and not isinstance(value, bool) and chance < 0.4:
        return random.choice(
            (value - 1, value + 1, -value, value * 2, value * 10**6, value + 0.5, str(value))
        )
    if isinstance(value, str) and chance < 0.4:
        return random.choice((value[:-1], value + "x", value * 2, value.upper(), f" {value}", value + "\0"))
    return _Raw(random.choice(_VALUES))


def _places(document: Any) -> list[tuple[list[Any], int]]:
    """Every value of the document, as its holder and its place in it."""
    found: list[tuple[list[Any], int]] = []
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list):
            found += [(holder, at) for at in range(len(holder))]
            waiting += [pair[1] for pair in holder] if isinstance(holder, _Pairs) else holder
    return found


def _text(value: Any) -> str:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, _Pairs):
        return "{" + ", ".join(f"{_text(key)}: {_text(held)}" for key, held in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value)


def _flip(random: Random, content: bytes) -> bytes:
    if not content:
        return b"\x01"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]


def _set(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return (
        content[:at]
        + bytes([random.choice((0, 1, 127, 128, 255, random.randrange(256)))])
        + content[at + 1 :]
    )


def _cut(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _without(random: Random, content: bytes) -> bytes:
    begin, end = _range(random, content)
    return content[:begin] + content[end:]


def _insert(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.choice(_TOKENS) + content[at:]


def _number(random: Random, content: bytes) -> bytes:
    """A number of 1, 2, 4 or 8 bytes in place of what stands there."""
    size = random.choice((1, 2, 4, 8))
    at = random.randrange(max(1, len(content) - size + 1))
    number = random.choice(_NUMBERS) % 256**size
    return content[:at] + number.to_bytes(size, random.choice(("little", "big"))) + content[at + size :]


def _repeat(random: Random, content: bytes) -> bytes:
    begin, end = _range(random, content)
    return content[:end] + content[begin:end] * random.choice((1, 1, 2, 100)) + content[end:]


def _splice(random: Random, content: bytes) -> bytes:
    """A part of the file in another place of it."""
    begin, end = _range(random, content)
    at = random.randrange(len(content) + 1)
    return content[:at] + content[begin:end] + content[at + random.choice((0, end - begin)) :]


def _range(random: Random, content: bytes) -> tuple[int, int]:
    begin = random.randrange(len(content) + 1)
    return begin, min(len(content), begin + random.choice((1, 2, 8, 64, 500)))


_BYTE_CHANGES = (_flip, _flip, _set, _cut, _without, _insert, _insert, _number, _repeat, _splice)
