"""The values of each JSON type that subschemas allow together: terminals, arrays and objects."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from mindbatch.decoding.json_schema.branches import Branches, Conjunction, ListedAs
from mindbatch.decoding.json_schema.document import Subschema
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.formats import FORMATS, STANDARD_FORMATS, UNSUPPORTED_FORMATS
from mindbatch.decoding.json_schema.keywords import DRAFT_2020
from mindbatch.decoding.json_schema.negation import Unlisted
from mindbatch.decoding.json_schema.numbers import (
    Bound,
    NumberSet,
    bound,
    number_leaf,
)
from mindbatch.decoding.json_schema.patterns import search_regex
from mindbatch.decoding.json_schema.terminals import Leaf, all_of, regex
from mindbatch.decoding.json_schema.texts import NO_STRING, any_string, one_of, quoted, string_leaf
from mindbatch.decoding.json_schema.unique_items import (
    MAX_STEPS,
    UNLISTED,
    ItemKey,
    UniqueArray,
    listed_values,
)
from mindbatch.decoding.json_schema.values import ArrayValue, ObjectValue, Property, Value
from mindbatch.io.error_lines import nearest, shown
from mindbatch.io.json_pointer import escaped

MAX_COUNT = 1 << 31
"""Characters, items or properties that a limit may ask for."""
MAX_MEMBERS = 1000
"""Properties of one object, and items of an array that have schemas of their own."""
MAX_PATTERNS = 5
"""Patterns of patternProperties that may match one object's names."""
Search = Callable[[Sequence[str], Sequence[str]], Sequence[Sequence[str]]]


class TypedValues:
    """Makes the values of conjunctions without alternatives.

    search: by patterns and names, the patterns that are found in each name. It may be costly.
    is_wide: strings are those that some validator may accept, and not those that all do.
    """

    def __init__(self, branches: Branches, search: Search, *, is_wide: bool = False) -> None:
        self._is_wide = is_wide
        self._branches = branches
        self._document = branches.document
        self._search = search

    def of(self, conjunction: Conjunction) -> Iterator[Value]:
        return self._of_schemas([self._document.subschemas[number] for number in conjunction])

    def _of_schemas(self, schemas: Sequence[Subschema]) -> Iterator[Value]:
        types = _allowed_types(schemas)
        if "null" in types:
            yield Leaf(regex("null"))
        if "boolean" in types and (leaf := _booleans(schemas)):
            yield leaf
        if "number" in types and (leaf := _numbers(schemas, is_whole=types["number"])):
            yield leaf
        if "string" in types and (leaf := self._strings(schemas)):
            yield leaf
        if "array" in types:
            array = self._array(schemas)
            is_unique = any(schema.keywords.get("uniqueItems") for schema in schemas)
            may_repeat = is_unique and (array.max_count is None or array.max_count > 1)
            yield self._unique(array, schemas[0].pointer) if may_repeat else array
        if "object" in types:
            yield self._object(schemas)

    def _strings(self, schemas: Sequence[Subschema]) -> Leaf | None:
        operands = []
        listed = _common(schemas, ListedAs.STRINGS)
        if listed is not None:
            if not listed:
                return None
            operands.append(one_of(listed))
        for schema in schemas:
            limits: Mapping[Any, Any] = schema.keywords
            if Unlisted.STRINGS in limits:
                operands += [any_string(), f"~{one_of(limits[Unlisted.STRINGS])}"]
            if "pattern" in schema.keywords:
                pattern, pointer = schema.keywords["pattern"], f"{schema.pointer}/pattern"
                operands.append(quoted(_searched(pattern, pointer, is_wide=self._is_wide)))
            if "format" in schema.keywords and not self._is_wide:
                operands += _format(schema.keywords["format"], schema.pointer)
        has_pattern = any("pattern" in schema.keywords for schema in schemas)
        shortest, longest = _largest(schemas, "minLength"), _least(schemas, "maxLength")
        return string_leaf(shortest, longest, operands, may_be_empty=has_pattern)

    def _array(self, schemas: Sequence[Subschema]) -> ArrayValue:
        forms = [self._items(schema) for schema in schemas]
        size = max((len(prefix) for prefix, _ in forms), default=0)
        if size > MAX_MEMBERS:
            raise SchemaError(
                schemas[0].pointer, f"{size} items in prefixItems; at most {MAX_MEMBERS} are allowed"
            )
        prefix = [
            self._branches.conjunction(
                part for items, rest in forms for part in (items[index : index + 1] or rest)
            )
            for index in range(size)
        ]
        items = self._branches.conjunction(chain.from_iterable(rest for _, rest in forms))
        return ArrayValue(tuple(prefix), items, _largest(schemas, "minItems"), _least(schemas, "maxItems"))

    def _unique(self, array: ArrayValue, pointer: str) -> UniqueArray:
        if array.prefix:
            raise SchemaError(pointer, UNLISTED)
        members: dict[ItemKey, list[Leaf]] = {}
        for branch in [] if array.items is None else self._branches.of(array.items):
            schemas = [self._document.subschemas[number] for number in branch]
            types = _allowed_types(schemas)
            numbers = _number_set(schemas, is_whole=types.get("number", False))
            listed = listed_values(types, _common(schemas, ListedAs.STRINGS), numbers)
            if listed is None:
                raise SchemaError(pointer, UNLISTED)
            for key, alone in listed:
                leaves = self._of_schemas([*schemas, Subschema(alone, pointer)])
                members.setdefault(key, []).extend(leaf for leaf in leaves if isinstance(leaf, Leaf))
        max_count = len(members) if array.max_count is None else min(array.max_count, len(members))
        unique = UniqueArray(tuple(map(tuple, members.values())), array.min_count, max_count)
        if unique.num_steps > MAX_STEPS:
            reason = (
                f"{len(members)} values are too many for uniqueItems; 10 are supported, or a low maxItems"
            )
            raise SchemaError(pointer, reason)
        return unique

    def _items(self, schema: Subschema) -> tuple[list[tuple[Any, str]], list[tuple[Any, str]]]:
        """Schemas of the first items and, in a list, that of the others, each with where it stands."""
        first, rest = "prefixItems", "items"
        if isinstance(schema.keywords.get("items"), list):
            first, rest = "items", "additionalItems"
        elif self._document.draft < DRAFT_2020:
            first = ""
        positions = schema.keywords.get(first, [])
        others = [(schema.keywords[rest], f"{schema.pointer}/{rest}")] if rest in schema.keywords else []
        return [(item, f"{schema.pointer}/{first}/{n}") for n, item in enumerate(positions)], others

    def _object(self, schemas: Sequence[Subschema]) -> ObjectValue:
        required = dict.fromkeys(chain.from_iterable(s.keywords.get("required", []) for s in schemas))
        declared = chain.from_iterable(schema.keywords.get("properties", {}) for schema in schemas)
        names = list(dict.fromkeys([*declared, *required]))
        patterns = _patterns(schemas)
        pointer = schemas[0].pointer if schemas else "#"
        if len(names) > MAX_MEMBERS:
            raise SchemaError(pointer, f"{len(names)} properties; at most {MAX_MEMBERS} are allowed")
        properties, allowed = [], self._names(schemas)
        matches = self._search([*patterns], names) if patterns else [()] * len(names)
        for name, matched in zip(names, matches, strict=True):
            value = self._branches.conjunction(_of_property(schemas, name, matched))
            key = Leaf(all_of([one_of([name]), *allowed]), may_be_empty=bool(allowed))
            properties.append(Property(name, key, value, name in required))
        others = tuple(self._others(schemas, names, patterns, allowed))
        min_count, max_count = _largest(schemas, "minProperties"), _least(schemas, "maxProperties")
        return ObjectValue(tuple(properties), others, min_count, max_count, pointer)

    def _names(self, schemas: Iterable[Subschema]) -> list[str]:
        """Operands of the terminals of names: what all propertyNames allow."""
        conjunction = self._branches.conjunction(
            (schema.keywords["propertyNames"], f"{schema.pointer}/propertyNames")
            for schema in schemas
            if "propertyNames" in schema.keywords
        )
        if conjunction == ():
            return []
        texts = []
        for branch in [] if conjunction is None else self._branches.of(conjunction):
            limits = [self._document.subschemas[number] for number in branch]
            if "string" in _allowed_types(limits) and (leaf := self._strings(limits)):
                texts.append(leaf.text)
        return [f"({' | '.join(texts or [NO_STRING])})"]

    def _others(
        self,
        schemas: Sequence[Subschema],
        names: Sequence[str],
        patterns: Mapping[str, str],
        allowed: Sequence[str],
    ) -> Iterator[tuple[Leaf, Conjunction]]:
        """Yields names without a property of their own, by the patterns that they match."""
        for chosen in range(1 << len(patterns)):
            matched = {pattern for index, pattern in enumerate(patterns) if chosen >> index & 1}
            value = self._branches.conjunction(_of_property(schemas, None, matched))
            if value is None:
                continue
            operands = [any_string(), *allowed]
            for pattern, pointer in patterns.items():
                is_match = pattern in matched
                text = quoted(_searched(pattern, pointer, is_wide=is_match == self._is_wide))
                operands.append(text if is_match else f"~{text}")
            if names:
                operands.append(f"~{one_of(names)}")
            yield Leaf(all_of(operands), may_be_empty=bool(patterns or allowed)), value


def _allowed_types(schemas: Iterable[Subschema]) -> dict[str, bool]:
    """Returns the types that all schemas allow, and for a number if it must be an integer."""
    allowed = dict.fromkeys(("null", "boolean", "number", "string", "array", "object"), False)
    for schema in schemas:
        names = schema.keywords.get("type")
        if names is None:
            continue
        names = {names} if isinstance(names, str) else set(names)
        is_whole = "integer" in names and "number" not in names
        if "integer" in names:
            names.add("number")
        allowed = {name: whole for name, whole in allowed.items() if name in names}
        if is_whole and "number" in allowed:
            allowed["number"] = True
    return allowed


def _booleans(schemas: Sequence[Subschema]) -> Leaf | None:
    values = [v for v in (True, False) if all(v in m for m in _members(schemas, ListedAs.BOOLEANS))]
    return Leaf(regex("|".join("true" if value else "false" for value in values))) if values else None


def _number_set(schemas: Sequence[Subschema], *, is_whole: bool) -> NumberSet:
    low: Bound | None = None
    high: Bound | None = None
    for schema in schemas:
        for name, value in schema.keywords.items():
            if isinstance(value, bool):  # draft 4's mark of the bound beside it
                continue
            if name in ("minimum", "exclusiveMinimum"):
                is_open = name != "minimum" or schema.keywords.get("exclusiveMinimum") is True
                side = bound(value, is_open=is_open)
                if low is None or (side.value, side.is_open) > (low.value, low.is_open):
                    low = side
            elif name in ("maximum", "exclusiveMaximum"):
                is_open = name != "maximum" or schema.keywords.get("exclusiveMaximum") is True
                side = bound(value, is_open=is_open)
                if high is None or (-side.value, side.is_open) > (-high.value, high.is_open):
                    high = side
    steps = tuple(schema.keywords["multipleOf"] for schema in schemas if "multipleOf" in schema.keywords)
    return NumberSet(low, high, is_whole, steps, _common(schemas, ListedAs.NUMBERS))


def _numbers(schemas: Sequence[Subschema], *, is_whole: bool) -> Leaf | None:
    try:
        return number_leaf(_number_set(schemas, is_whole=is_whole))
    except ValueError as error:
        pointer = next(schema.pointer for schema in schemas if "multipleOf" in schema.keywords)
        raise SchemaError(pointer, str(error)) from error


def _format(name: str, pointer: str) -> list[str]:
    """Returns the operand of a format; none for a name that JSON Schema does not have."""
    if name in FORMATS:
        return [FORMATS[name]]
    if name in UNSUPPORTED_FORMATS:
        raise SchemaError(pointer, f"format={shown(name)} is not supported; {', '.join(sorted(FORMATS))} are")
    if meant := nearest(name.replace("_", "-"), STANDARD_FORMATS, cutoff=0.85):
        raise SchemaError(pointer, f"format={shown(name)} is no format; did you mean {meant}?")
    return []


def _searched(pattern: str, pointer: str, *, is_wide: bool = False) -> str:
    try:
        return search_regex(pattern, is_wide=is_wide)
    except ValueError as error:
        raise SchemaError(pointer, f"{shown(pattern)} {error}") from error


def _members(schemas: Iterable[Subschema], kind: ListedAs) -> list[tuple[Any, ...]]:
    lists: list[Mapping[Any, Any]] = [schema.keywords for schema in schemas]
    return [keywords[kind] for keywords in lists if kind in keywords]


def _common(schemas: Iterable[Subschema], kind: ListedAs) -> tuple[Any, ...] | None:
    """Members of every list of a kind; None without any list."""
    lists = _members(schemas, kind)
    if not lists:
        return None
    first, *others = lists
    return tuple(value for value in first if all(value in members for members in map(set, others)))


def _largest(schemas: Sequence[Subschema], name: str) -> int:
    count = max((int(schema.keywords.get(name, 0)) for schema in schemas), default=0)
    if count > MAX_COUNT:
        raise SchemaError(schemas[0].pointer, f"{name}={count}: at most {MAX_COUNT} is supported")
    return count


def _least(schemas: Iterable[Subschema], name: str) -> int | None:
    """Returns the least count of a keyword; None also for one that no text can reach."""
    counts = [int(schema.keywords[name]) for schema in schemas if name in schema.keywords]
    return min((count for count in counts if count <= MAX_COUNT), default=None)


def _patterns(schemas: Iterable[Subschema]) -> dict[str, str]:
    """Returns the patterns of properties' names, each with its pointer."""
    patterns = {
        pattern: f"{schema.pointer}/patternProperties/{escaped(pattern)}"
        for schema in schemas
        for pattern in schema.keywords.get("patternProperties", {})
    }
    for pattern, pointer in patterns.items():
        _searched(pattern, pointer)
    if len(patterns) > MAX_PATTERNS:
        pointer = next(iter(patterns.values()))
        raise SchemaError(pointer, f"{len(patterns)} patterns; at most {MAX_PATTERNS} are allowed")
    return patterns


def _of_property(
    schemas: Iterable[Subschema], name: str | None, matched: Iterable[str]
) -> Iterator[tuple[Any, str]]:
    """Lists what the value of a property fulfils: its schema, those of patterns that match its name, and
    where a subschema has neither, additionalProperties. name: None for one that no subschema declares."""
    for keywords, pointer in schemas:
        is_known = False
        if name is not None and name in keywords.get("properties", {}):
            is_known = True
            yield keywords["properties"][name], f"{pointer}/properties/{escaped(name)}"
        for pattern, schema in keywords.get("patternProperties", {}).items():
            if pattern in matched:
                is_known = True
                yield schema, f"{pointer}/patternProperties/{escaped(pattern)}"
        if not is_known and "additionalProperties" in keywords:
            yield keywords["additionalProperties"], f"{pointer}/additionalProperties"
