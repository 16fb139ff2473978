"""Writes the values of a schema as a grammar: rules for nodes, terminals for names and leaves."""

from collections.abc import Iterator, Mapping, Sequence

from mindbatch.decoding.json_schema.branches import Conjunction
from mindbatch.decoding.json_schema.errors import SchemaError
from mindbatch.decoding.json_schema.terminals import Leaf, regex
from mindbatch.decoding.json_schema.unique_items import UniqueArray
from mindbatch.decoding.json_schema.values import ArrayValue, ObjectValue, Value

MAX_RULES = 10_000
"""Rules of one grammar; the library numbers its symbols with 16 bits."""
# A line break and indentation, or a space: without a bound a model may write blanks for ever.
_BLANKS = r"\x{a}?\x{20}{0,16}"
_MARKS = {
    "OPEN": r"\{" + _BLANKS,
    "CLOSE": _BLANKS + r"\}",
    "EMPTY": r"\{" + _BLANKS + r"\}",
    "BEGIN": r"\[" + _BLANKS,
    "END": _BLANKS + r"\]",
    "NONE": r"\[" + _BLANKS + r"\]",
    "COMMA": f"{_BLANKS},{_BLANKS}",
    "COLON": f"{_BLANKS}:{_BLANKS}",
}


def grammar_text(values: Mapping[Conjunction, Sequence[Value]], root: Conjunction) -> str:
    """Returns the grammar of the values of nodes, of which all parts have a text."""
    return _RuleWriter(values).text(root)


class _RuleWriter:
    def __init__(self, values: Mapping[Conjunction, Sequence[Value]]) -> None:
        self._values = values
        self._terminals: dict[str, str] = {}
        self._nodes: dict[Conjunction, str] = {}
        self._waiting: list[Conjunction] = []
        self._lines: list[str] = []
        self._count = 0

    def text(self, root: Conjunction) -> str:
        start = self._node(root)
        while self._waiting:
            node = self._waiting.pop()
            self._lines.append(f"{self._nodes[node]}: {' | '.join(self._alternatives(node))}")
        marks = [f"{name}: {regex(pattern)}" for name, pattern in _MARKS.items()]
        terminals = [f"{name}: {text}" for text, name in self._terminals.items()]
        return "\n".join([f"start: {start}", *self._lines, *marks, *terminals])

    def _alternatives(self, node: Conjunction) -> Iterator[str]:
        for value in self._values[node]:
            if isinstance(value, Leaf):
                yield self._rule([value.text]) if value.is_rule else self._terminal(value.text)
            elif isinstance(value, ArrayValue):
                yield from self._array(value)
            elif isinstance(value, UniqueArray):
                yield from self._unique_array(value)
            else:
                yield from self._object(value)

    def _node(self, node: Conjunction) -> str:
        if node not in self._nodes:
            self._nodes[node] = f"n{len(self._nodes)}"
            self._waiting.append(node)
        return self._nodes[node]

    def _terminal(self, text: str) -> str:
        return self._terminals.setdefault(text, f"T{len(self._terminals)}")

    def _rule(self, alternatives: Sequence[str]) -> str:
        self._count += 1
        if self._count > MAX_RULES:
            raise SchemaError("#", f"it is too large: its grammar has more than {MAX_RULES} rules")
        self._lines.append(f"r{self._count}: {' | '.join(alternatives)}")
        return f"r{self._count}"

    def _array(self, array: ArrayValue) -> Iterator[str]:
        if array.min_count == 0:
            yield "NONE"
        if array.max_count == 0:
            return
        size = len(array.prefix)
        following = ""
        if array.items is not None and (array.max_count is None or array.max_count > size):
            item = self._node(array.items)
            max_count = None if array.max_count is None else array.max_count - max(size, 1)
            following = _repeated(f"(COMMA {item})", max(0, array.min_count - max(size, 1)), max_count)
        if size == 0:
            assert array.items is not None
            yield f"BEGIN {self._node(array.items)} {following} END"
            return
        for index in range(size - 1, 0, -1):
            part = array.prefix[index]
            assert part is not None
            following = f"COMMA {self._node(part)} {following}"
            following = self._rule([following if array.min_count > index else f"({following})?"])
        assert array.prefix[0] is not None
        yield f"BEGIN {self._node(array.prefix[0])} {following} END"

    def _unique_array(self, array: UniqueArray) -> Iterator[str]:
        """Yields a rule for each set of items that an array may have so far: what may follow it."""
        if array.min_count == 0:
            yield "NONE"
        if array.max_count == 0:
            return
        items = [" | ".join(self._terminal(leaf.text) for leaf in leaves) for leaves in array.members]
        following: dict[tuple[int, ...], str] = {}
        for chosen in array.sets():
            continuations = ['""'] if chosen and len(chosen) >= array.min_count else []
            if len(chosen) < array.max_count:
                comma = "COMMA " if chosen else ""
                for member in range(len(items)):
                    if member not in chosen:
                        after = following[tuple(sorted((*chosen, member)))]
                        continuations.append(f"{comma}({items[member]}) {after}")
            following[chosen] = self._rule(continuations)
        yield f"BEGIN {following[()]} END"

    def _object(self, value: ObjectValue) -> Iterator[str]:
        required = sum(part.is_required for part in value.properties)
        if required == 0 and value.min_count == 0:
            yield "EMPTY"
        members = self._members(
            value, max(1, value.min_count) if value.max_count is None else value.max_count
        )
        if members is not None:
            yield f"OPEN {members} CLOSE"

    def _members(self, value: ObjectValue, cap: int) -> str | None:
        """Returns the members of an object that has any, from the last property to the first.

        By how many members there are before a property: what may follow, or None if nothing can. Of counts
        that are too large to matter the largest, `cap`, stands for all.
        """
        cap = min(cap, len(value.properties) + 1)
        if cap * len(value.properties) > MAX_RULES:
            raise SchemaError(
                value.pointer, "too many properties to count for minProperties or maxProperties"
            )
        pair = self._pair(value) if value.others else None
        following = [self._ending(value, pair, count) for count in range(cap + 1)]
        for part in reversed(value.properties):
            assert part.value is not None
            member = f"{self._terminal(part.key.text)} COLON {self._node(part.value)}"
            before: list[str | None] = []
            for count in range(cap + 1):
                options = [] if part.is_required or following[count] is None else [str(following[count])]
                after = following[min(count + 1, cap)]
                if after is not None and (value.max_count is None or count < value.max_count):
                    options.append(f"{'COMMA ' if count else ''}{member} {after}")
                before.append(self._rule(options) if options else None)
            following = before
        return following[0]

    def _ending(self, value: ObjectValue, pair: str | None, count: int) -> str | None:
        """Writes what may follow the last declared property, after `count` members; one there must be."""
        missing = max(0, value.min_count - count)
        max_count = None if value.max_count is None else value.max_count - count
        if pair is None or max_count == 0:
            return '""' if count and not missing else None
        if count:
            return self._rule([_repeated(f"(COMMA {pair})", missing, max_count)])
        return self._rule(
            [f"{pair} {_repeated(f'(COMMA {pair})', 0, None if max_count is None else max_count - 1)}"]
        )

    def _pair(self, value: ObjectValue) -> str:
        return self._rule(
            [f"{self._terminal(name.text)} COLON {self._node(part)}" for name, part in value.others]
        )


def _repeated(item: str, min_count: int, max_count: int | None) -> str:
    if max_count is None:
        return f"{item}*" if min_count == 0 else f"{item}{{{min_count},}}"
    return f"{item}{{{min_count},{max_count}}}" if max_count else ""
