"""Random JSON schemas of every keyword, values that they may allow, and texts that a grammar lets through."""

import json
from collections.abc import Iterator
from itertools import permutations
from random import Random
from typing import Any

import llguidance

from mindbatch.decoding.grammar_worker import LibraryVocabulary

FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
PATTERNS = [
    "^a",
    "b$",
    "^[ab]{1,3}$",
    r"^\d+$",
    r"\s",
    "^(?:x|y.)z?$",
    "(^a|b$)",
    "^[^a-f]*$",
    ".",
    r"\w\W",
    "^$",
]
PATTERNS += ['"', r"\\", r"^[\x00-\x22]{2}$", "é|^ü", "^(a|b|ab)*c?$", r"^\D\S$", r"^(19|20)\d\d-02-(28|29)$"]
KEY_PATTERNS = ["^a", "b$", "^[a-c]$", "^x", "x", "^", "^a$"]
NAMES = ["a", "b", "c", "ab", 'q"', "é"]
STRINGS = ["", "a", "b", "ab", "abc", "x", "xyz", "é", "👩", "12", " ", "a\nb", '"', "\\", "\x01", "a.b@c.de"]
STRINGS += [
    "2024-02-29",
    "2023-02-29",
    "1900-02-29",
    "0000-01-01",
    "2000-02-29T23:59:59Z",
    "12:00:60Z",
    "P1DT2H",
]
STRINGS += ["12:30:00+02:00", "example.com", "10.0.0.1", "::1", "http://a.b/c?d#e", "urn:a:b"]
STRINGS += ["123e4567-e89b-12d3-a456-426614174000"]
NUMBERS = [0, 1, -1, 2, 3, 7, 10, 12, 99, 100, 101, -7, -100]
NUMBERS += [0.1, 0.5, 0.25, 1.5, 1.25, -0.5, -1.75, 2.5, 99.99, 0.3]
NUMBERS += [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63) + 1, 2**64, 10**20 + 1, 1e16, -(2**53) - 1]


def random_schema(rng: Random, depth: int = 2) -> Any:
    """A schema, now and then one that nothing fulfils or that has to be refused."""
    if rng.random() < 0.04:
        return rng.choice([True, False, {}])
    makers = [_number, _number, _string, _string, _listed]
    if depth > 0:
        makers += [_array, _object, _object, _object, _combined, _combined]
    schema = rng.choice(makers)(rng, depth - 1)
    if rng.random() < 0.05:
        schema["type"] = rng.choice(["string", "number", "integer", ["integer", "null"], "object", "boolean"])
    return schema


def document(rng: Random) -> dict[str, Any]:
    """A schema with definitions that it may refer to, themselves included."""
    schema = random_schema(rng)
    if not isinstance(schema, dict):
        return {"allOf": [schema]}
    return schema | {"$defs": {"d/e": random_schema(rng, 1), "f": random_schema(rng, 1)}}


def _some(rng: Random, keywords: dict[str, Any], share: float = 0.5) -> dict[str, Any]:
    return {name: make() for name, make in keywords.items() if rng.random() < share}


def _number(rng: Random, _: int) -> dict[str, Any]:
    kind = rng.choice(["integer", "number"])
    bound = lambda: rng.choice(NUMBERS)  # noqa: E731
    step = lambda: rng.choice([1, 2, 3, 5, 7, 10, 0.5, 0.25, 0.125, 0.3, 12.5, 64, 2.0])  # noqa: E731
    bounds = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bound)
    return {"type": kind, **_some(rng, bounds, 0.3), **_some(rng, {"multipleOf": step}, 0.2)}


def _string(rng: Random, _: int) -> dict[str, Any]:
    keywords = {
        "minLength": lambda: rng.choice([0, 1, 2, 5, 2.0]),
        "maxLength": lambda: rng.choice([0, 1, 3, 12]),
        "pattern": lambda: rng.choice(PATTERNS),
        "format": lambda: rng.choice(FORMATS),
    }
    return {"type": "string", **_some(rng, keywords, 0.35)}


def _listed(rng: Random, _: int) -> dict[str, Any]:
    values: list[Any] = [*STRINGS, *NUMBERS, None, True, False]
    values += [[], {}, [1, "a"], {"a": [None], "b": 1.5}, [[0]]]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": [rng.choice(values) for _ in range(rng.randint(0, 5))]}


def _array(rng: Random, depth: int) -> dict[str, Any]:
    keywords = {
        "items": lambda: random_schema(rng, depth),
        "prefixItems": lambda: [random_schema(rng, depth) for _ in range(rng.randint(1, 3))],
        "minItems": lambda: rng.randint(0, 3),
        "maxItems": lambda: rng.randint(0, 4),
    }
    schema = {"type": "array", **_some(rng, keywords)}
    if rng.random() < 0.2:
        listed = rng.choice(
            [{"enum": rng.sample([*STRINGS, *NUMBERS, 1.0, True, None], 3)}, {"type": "boolean"}]
        )
        schema |= {"items": rng.choice([listed, {"anyOf": [listed, {"type": "null"}]}]), "uniqueItems": True}
    return schema


def _object(rng: Random, depth: int) -> dict[str, Any]:
    names = lambda: rng.sample(NAMES, rng.randint(0, 3))  # noqa: E731
    keywords = {
        "properties": lambda: {name: _property(rng, depth) for name in names()},
        "required": names,
        "additionalProperties": lambda: rng.choice([False, False, random_schema(rng, depth)]),
        "patternProperties": lambda: {
            pattern: random_schema(rng, depth) for pattern in rng.sample(KEY_PATTERNS, rng.randint(1, 2))
        },
        "minProperties": lambda: rng.randint(0, 3),
        "maxProperties": lambda: rng.randint(0, 3),
        "propertyNames": lambda: random_schema(rng, 0) if rng.random() < 0.3 else _string(rng, 0),
        "dependentRequired": lambda: {"a": names()},
        "dependentSchemas": lambda: {"b": random_schema(rng, depth)},
    }
    chances = {"properties": 0.9, "required": 0.5, "additionalProperties": 0.6}
    chosen = {name: make() for name, make in keywords.items() if rng.random() < chances.get(name, 0.2)}
    return {"type": "object", **chosen}


def _property(rng: Random, depth: int) -> Any:
    if rng.random() < 0.1:
        return {"$ref": rng.choice(["#", "#/$defs/d~1e", "#/$defs/f"])}
    return random_schema(rng, depth)


def _combined(rng: Random, depth: int) -> dict[str, Any]:
    keyword = rng.choice(["anyOf", "oneOf", "allOf", "$ref", "not", "if", "required"])
    if keyword == "not":
        return {"not": _negatable(rng)} | rng.choice(
            [{}, {"type": rng.choice(["string", "number", "object"])}]
        )
    if keyword == "if":
        return {name: random_schema(rng, 0) for name in ("then", "else")} | {"if": _negatable(rng)}
    if keyword == "required":
        return {"type": "object", "oneOf": [{"required": [name]} for name in rng.sample(NAMES, 2)]}
    if keyword == "$ref":
        return {"$ref": rng.choice(["#/$defs/d~1e", "#/$defs/f"]), **rng.choice([{}, {"minimum": 1}])}
    parts = [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    beside = random_schema(rng, 0) if rng.random() < 0.2 else {}
    return {keyword: parts} | (beside if isinstance(beside, dict) else {})


def _negatable(rng: Random, depth: int = 2) -> Any:
    """A schema of keywords that can be negated."""
    makers = [
        lambda: {"enum": rng.sample([*STRINGS, *NUMBERS, True, None], 3)},
        lambda: {"type": rng.sample(["string", "number", "null", "object", "array", "boolean"], 2)},
        lambda: {rng.choice(["minimum", "maximum"]): rng.choice(NUMBERS)},
        lambda: {rng.choice(["minLength", "maxLength", "minItems", "maxItems"]): rng.randint(0, 2)},
        lambda: {"required": rng.sample(NAMES, 2)},
        lambda: {"const": rng.choice([*STRINGS, *NUMBERS, True, None])},
    ]
    if depth:
        below = lambda: _negatable(rng, depth - 1)  # noqa: E731
        makers += [
            lambda: {"properties": {rng.choice(NAMES): below()}},
            lambda: {rng.choice(["anyOf", "allOf"]): [below(), below()]},
            lambda: {"not": below()},
            lambda: {"$ref": "#/$defs/f"},
        ]
    return rng.choice(makers)()


def candidates(rng: Random, count: int) -> Iterator[Any]:
    """Values of JSON, of which some fulfil a schema."""
    plain: list[Any] = [*STRINGS, *NUMBERS, None, True, False]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.5:
            yield rng.choice(plain)
        elif kind < 0.7:
            yield [rng.choice(plain) for _ in range(rng.randint(0, 3))]
        else:
            yield {name: rng.choice(plain) for name in rng.sample([*NAMES, "x", "ax"], rng.randint(0, 3))}


def texts_of(value: Any) -> Iterator[str]:
    """The texts of a value as json.dumps writes them, large floats in digits, the keys in every order."""
    if not isinstance(value, dict):
        yield json.dumps(value, ensure_ascii=False).replace("1e+16", str(10**16))
        return
    for keys in permutations(value):
        yield json.dumps({key: value[key] for key in keys}, ensure_ascii=False).replace("1e+16", str(10**16))


_VOCABULARY = LibraryVocabulary([bytes([byte]) for byte in range(256)])
_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_VOCABULARY), slices=[])
_CLOSING = b'"}]0Za'


def matcher_of(grammar: str) -> llguidance.LLMatcher:
    limits = llguidance.LLParserLimits(precompute_large_lexemes=False, verbose_errors=False)
    return llguidance.LLMatcher(_TOKENIZER, grammar, log_level=0, limits=limits)


def accepts(matcher: llguidance.LLMatcher, text: str) -> bool:
    matcher = matcher.deep_copy()
    return all(matcher.consume_token(byte) for byte in text.encode()) and bool(matcher.is_accepting())


def allowed_bytes(matcher: llguidance.LLMatcher) -> set[int]:
    bits = matcher.compute_bitmask()
    return {byte for byte in range(256) if bits[byte // 8] >> byte % 8 & 1}


def random_text(matcher: llguidance.LLMatcher, rng: Random, most: int = 300) -> str | None:
    """A text that the grammar lets through, byte by byte; None if it has not ended after `most`.

    Raises:
        AssertionError: nothing may follow a text that is not complete.
    """
    matcher, text = matcher.deep_copy(), bytearray()
    while len(text) < most:
        allowed = sorted(allowed_bytes(matcher))
        if matcher.is_accepting() and (not allowed or rng.random() < 0.3):
            return text.decode()
        assert allowed, f"nothing may follow {bytes(text)!r}"
        closing = [byte for byte in allowed if byte in _CLOSING]
        is_late = rng.random() < 0.2 + len(text) / 60
        byte = rng.choice(closing if closing and is_late else allowed)
        assert matcher.consume_token(byte)
        text.append(byte)
    return None
