"""Rewrites a subschema as alternatives, each of them subschemas that hold together and have no alternatives.

References, allOf, anyOf, oneOf, enum, const and what depends on a property are gone from them: the keywords
that remain (`types.py` reads them) limit values of single types.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import combinations
from typing import Any

from mindbatch.decoding.json_schema.document import Document
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.keywords import ANNOTATIONS, DRAFT_2020, is_false
from mindbatch.decoding.json_schema.negation import Negation
from mindbatch.io.json_pointer import escaped

MAX_ALTERNATIVES = 1024
"""Alternatives of one value, multiplied out."""
MAX_COMPARED = 64
"""Alternatives of a oneOf without a discriminator, of which each two are compared."""
MAX_WORK = 1_000_000
"""Subschemas of all alternatives together, while they are multiplied out."""


class ListedAs(Enum):
    """Keywords of our own, no texts as those of JSON are: what an enum lists of a type."""

    STRINGS = "string"
    NUMBERS = "number"
    BOOLEANS = "boolean"


_DEPENDENT = ("dependencies", "dependentRequired", "dependentSchemas")
_RESOLVED = frozenset(("$ref", "allOf", "anyOf", "const", "enum", "if", "not", "oneOf", *_DEPENDENT))

Conjunction = tuple[int, ...]
"""Numbers of subschemas that hold together, in the order in which the schema has them."""


def together(parts: Iterable[Conjunction]) -> Conjunction:
    return tuple(dict.fromkeys(number for part in parts for number in part))


class Branches:
    """Alternatives of subschemas, each found once; notes pairs of oneOf of which both must not hold."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._negation = Negation(document)
        self.exclusive: dict[Conjunction, tuple[str, str]] = {}
        """Conjunctions that no value may fulfil: where two alternatives of a oneOf stand."""
        self._known: dict[int, list[Conjunction]] = {}
        self._trail: list[int] = []
        self._work = 0
        self._synthetic: dict[tuple[int, str], dict[Any, Any]] = {}

    def conjunction(self, schemas: Iterable[tuple[Any, str]]) -> Conjunction | None:
        """Returns the numbers of schemas that hold together; None if one of them is false."""
        numbers = []
        for schema, pointer in schemas:
            if is_false(schema):
                return None
            if schema is not True and schema.keys() - ANNOTATIONS:
                numbers.append(self.document.number(schema, pointer))
        return together([tuple(numbers)])

    def of(self, conjunction: Conjunction) -> list[Conjunction]:
        """Returns the alternatives of subschemas that hold together."""
        pointer = self.document.subschemas[conjunction[0]].pointer if conjunction else "#"
        return self._product([self._of_one(number) for number in conjunction], pointer)

    def _of_one(self, number: int) -> list[Conjunction]:
        if number in self._known:
            return self._known[number]
        keywords, pointer = self.document.subschemas[number]
        if number in self._trail:
            raise SchemaError(pointer, "it refers to itself with nothing between")
        self._trail.append(number)
        try:
            self._known[number] = self._product(list(self._parts(number, keywords, pointer)), pointer)
        except RecursionError as error:
            raise SchemaError(pointer, "its references are nested too deeply") from error
        finally:
            self._trail.pop()
        return self._known[number]

    def _parts(self, number: int, keywords: dict[str, Any], pointer: str) -> Iterator[list[Conjunction]]:
        """Lists what must hold for each keyword, in their order, which is that of the properties."""
        is_inserted = False
        for name, value in keywords.items():
            if name in _RESOLVED:
                yield from map(self._of_schemas, self._resolved(number, name, value, pointer))
            elif name not in ANNOTATIONS and not is_inserted:
                is_inserted = True
                yield [(number,)]

    def _resolved(
        self, number: int, name: str, value: Any, pointer: str
    ) -> Iterator[Iterable[tuple[Any, str]]]:
        """Lists the schemas that replace a keyword: of each group one must hold."""
        here = f"{pointer}/{name}"
        if name == "$ref":
            yield [self.document.resolved(value, pointer)]
        elif name == "allOf":
            yield from ([(schema, f"{here}/{index}")] for index, schema in enumerate(value))
        elif name in ("anyOf", "oneOf"):
            schemas = [(schema, f"{here}/{index}") for index, schema in enumerate(value)]
            if name == "oneOf" and all(map(_only_requires, value)):
                schemas = self._apart(number, value, here)
            elif name == "oneOf":
                self._exclude(number, schemas, here)
            yield schemas
        elif name == "not":
            yield self._negated(number, name, value, here)
        elif name == "if":
            keywords = self.document.subschemas[number].keywords
            if {"then", "else"} & keywords.keys():
                yield self._cases(number, keywords, pointer)
        elif name in ("const", "enum"):
            values = value if name == "enum" else [value]
            yield [(schema, here) for schema in self._listed(number, name, values)]
        else:
            for key, dependency in value.items():
                yield self._dependent(number, name, key, dependency, here)

    def _of_schemas(self, schemas: Iterable[tuple[Any, str]]) -> list[Conjunction]:
        """Returns the alternatives of schemas of which one must hold."""
        alternatives: list[Conjunction] = []
        for schema in schemas:
            conjunction = self.conjunction([schema])
            if conjunction is not None:
                alternatives += [()] if not conjunction else self._of_one(*conjunction)
        return list(dict.fromkeys(alternatives))

    def _product(self, parts: Sequence[list[Conjunction]], pointer: str) -> list[Conjunction]:
        product: list[Conjunction] = [()]
        for part in parts:
            if len(product) * len(part) > MAX_ALTERNATIVES:
                raise SchemaError(pointer, f"has more than {MAX_ALTERNATIVES} alternatives, multiplied out")
            product = list(dict.fromkeys(together([left, right]) for left in product for right in part))
            self._work += sum(map(len, product))
            if self._work > MAX_WORK:
                raise SchemaError(pointer, "it is too large, with its alternatives multiplied out")
        return product

    def _negated(self, number: int, name: str, schema: Any, pointer: str) -> list[tuple[Any, str]]:
        schemas = self._synthesized(number, f"not {name}", {"anyOf": self._negation.of(schema, pointer)})
        return [(alternative, pointer) for alternative in schemas["anyOf"]]

    def _cases(self, number: int, keywords: dict[str, Any], pointer: str) -> Iterator[tuple[Any, str]]:
        """Yields the two cases of `if`: the schema and `then`, or its negation and `else`."""
        for name in ("if", "then", "else"):
            if isinstance(keywords.get(name), dict):  # numbered at its own pointer, before it is part of ours
                self.document.number(keywords[name], f"{pointer}/{name}")
        here, then = f"{pointer}/if", [keywords["then"]] if "then" in keywords else []
        yield self._synthesized(number, "then", {"allOf": [keywords["if"], *then]}), here
        otherwise = [keywords["else"]] if "else" in keywords else []
        for index, (schema, _) in enumerate(self._negated(number, "if", keywords["if"], here)):
            yield self._synthesized(number, f"else/{index}", {"allOf": [schema, *otherwise]}), here

    def _apart(self, number: int, schemas: Sequence[Any], pointer: str) -> list[tuple[Any, str]]:
        """Alternatives of which exactly one holds: each with the negation of the others."""
        denials = [{"anyOf": self._negation.of(schema, pointer)} for schema in schemas]
        return [
            (
                self._synthesized(number, f"oneOf/{n}", {"allOf": [schema, *denials[:n], *denials[n + 1 :]]}),
                pointer,
            )
            for n, schema in enumerate(schemas)
        ]

    def _exclude(self, number: int, schemas: Sequence[tuple[Any, str]], pointer: str) -> None:
        """Notes that no value may fulfil two alternatives of a oneOf and the keywords beside it."""
        keywords = self.document.subschemas[number].keywords
        if self._have_discriminator(schemas):
            return
        if len(schemas) > MAX_COMPARED:
            wanted = "each an object with a required property whose const tells it"
            raise SchemaError(pointer, f"{len(schemas)} alternatives are too many, unless they are {wanted}")
        rest = self._synthesized(
            number, "oneOf", {key: value for key, value in keywords.items() if key != "oneOf"}
        )
        for pair in combinations(schemas, 2):
            conjunction = self.conjunction([(rest, pointer), *pair])
            if conjunction is not None:
                self.exclusive.setdefault(conjunction, (pair[0][1], pair[1][1]))

    def _have_discriminator(self, schemas: Sequence[tuple[Any, str]]) -> bool:
        """True if the alternatives are different strings, or objects that such a property tells apart."""
        targets = [
            self.document.resolved(schema["$ref"], pointer)[0]
            if isinstance(schema, dict) and isinstance(schema.get("$ref"), str)
            else schema
            for schema, pointer in schemas
        ]
        constants = [_constants(target) for target in targets]
        return any(
            len({constant.get(name) for constant in constants} - {None}) == len(targets)
            for name in constants[0]
        )

    def _synthesized(self, number: int, name: str, keywords: dict[Any, Any]) -> dict[Any, Any]:
        """Returns a schema that replaces a keyword: one object, which keeps its number."""
        return self._synthetic.setdefault((number, name), keywords)

    def _listed(self, number: int, name: str, values: Sequence[Any]) -> Iterator[dict[Any, Any]]:
        """Schemas of the values of an enum: one for all strings, one for all numbers, one for each other."""
        kinds: dict[ListedAs, list[Any]] = {}
        for index, value in enumerate(values):
            if isinstance(value, str):
                kinds.setdefault(ListedAs.STRINGS, []).append(value)
            elif isinstance(value, bool):
                kinds.setdefault(ListedAs.BOOLEANS, []).append(value)
            elif isinstance(value, int | float):
                kinds.setdefault(ListedAs.NUMBERS, []).append(value)
            else:
                yield self._synthesized(number, f"{name}/{index}", _constant(value, self.document.draft))
        for kind, members in kinds.items():
            yield self._synthesized(
                number, f"{name}/{kind.value}", {"type": kind.value, kind: tuple(members)}
            )

    def _dependent(
        self, number: int, name: str, key: str, dependency: Any, pointer: str
    ) -> list[tuple[Any, str]]:
        """Either the property is absent, or what depends on it holds."""
        here = f"{pointer}/{escaped(key)}"
        absent = self._synthesized(number, f"{name}/{key}/absent", {"properties": {key: False}})
        names = [key, *dependency] if isinstance(dependency, list) else [key]
        present: dict[str, Any] = {"required": names}
        if not isinstance(dependency, list):
            present["allOf"] = [dependency]
        return [(absent, here), (self._synthesized(number, f"{name}/{key}/present", present), here)]


def _only_requires(schema: Any) -> bool:
    return (
        isinstance(schema, dict) and bool(schema.get("required")) and schema.keys() <= {"required", "title"}
    )


def _constant(value: Any, draft: int) -> dict[str, Any]:
    """Returns a schema that null, an array or an object alone fulfils."""
    if value is None:
        return {"type": "null"}
    if isinstance(value, list):
        items = [{"const": item} for item in value]
        positions = {("items" if draft < DRAFT_2020 else "prefixItems"): items} if items else {}
        return {"type": "array", "minItems": len(items), "maxItems": len(items), **positions}
    properties = {name: {"const": item} for name, item in value.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [*value],
        "additionalProperties": False,
    }


def _constants(schema: Any) -> dict[str, str]:
    """Strings that every value of a schema has to have, by property; its own by the empty name."""
    if not isinstance(schema, dict) or "$ref" in schema:
        return {}
    if isinstance(schema.get("const"), str):
        return {"": schema["const"]}
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {
        f"/{name}": value["const"]
        for name, value in properties.items()
        if name in required and isinstance(value, dict) and isinstance(value.get("const"), str)
    }
