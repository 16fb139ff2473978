"""The tensors of one rank under Hugging Face names and MindFormers', and which elements are the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from mindbatch.checkpoint.faults import collecting, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.names.dialect import Dialect, Form, Heads, Order, Rule, Sections
from mindbatch.checkpoint.names.section_places import Span, read_sizes, shapes_of, spans, view_of
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    first_overlap,
    full_region,
    is_inside,
    oriented,
    region_shape,
    shown_region,
    uncovered,
    volume,
)
from mindbatch.errors import CheckpointError

_LAYER = "{layer}"
_NUMBER = re.compile(r"\.(0|[1-9]\d{0,5})\.")


class Link(NamedTuple):
    """The same elements: a box of a Hugging Face tensor, and one of MindFormers' tensor, in its view.

    transposed: the second box has its dimensions, and its elements, the other way round.
    """

    original: str
    box: Region
    stored: str
    place: Region
    transposed: bool


@dataclass(frozen=True)
class Correspondence:
    """All tensors that a rank holds, by the names of both sides; the links hold every element once.

    views: the shape by which the places in a MindFormers tensor are counted, where it is not its own; the
    bytes are the same.
    """

    originals: Mapping[str, Shape]
    stored: Mapping[str, Shape]
    views: Mapping[str, Shape]
    links: tuple[Link, ...]

    def view(self, stored: str) -> Shape:
        """The shape by which the places in a MindFormers tensor are counted."""
        return self.views.get(stored, self.stored[stored])


def to_mindformers(dialect: Dialect, originals: Mapping[str, Shape], heads: Heads) -> Correspondence:
    """MindFormers' tensors for a rank's tensors under Hugging Face names, full or cut alike.

    Raises:
        CheckpointError: names that have no rule, parts of a fused tensor that are missing or do not fit.
    """
    return _correspondence(dialect, originals, heads, is_stored=False)


def to_huggingface(dialect: Dialect, stored: Mapping[str, Shape], heads: Heads) -> Correspondence:
    """The other way: the Hugging Face tensors for a rank's tensors under MindFormers' names.

    Raises:
        CheckpointError: as `to_mindformers`.
    """
    return _correspondence(dialect, stored, heads, is_stored=True)


def unused_names(dialect: Dialect, names: Iterable[str]) -> set[str]:
    """Names of tensors that no model needs and that are left behind."""
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in dialect.unused)}


def known_names(dialect: Dialect, names: Iterable[str], *, is_stored: bool) -> set[str]:
    """Those of the names that MindFormers has, or Hugging Face, for tensors that a model needs."""
    known = _rules_by_name(dialect, is_stored)
    return {name for name in names if _without_layer(name)[0] in known}


def _correspondence(
    dialect: Dialect, shapes: Mapping[str, Shape], heads: Heads, *, is_stored: bool
) -> Correspondence:
    unused = unused_names(dialect, shapes)
    given = {name: shape for name, shape in shapes.items() if name not in unused}
    faults: list[str] = []
    rules: dict[Rule, None] = {}
    for name in given:
        with collecting(faults):
            rules[_rule_for(dialect, name, given, is_stored=is_stored)] = None
    originals: dict[str, Shape] = {}
    stored: dict[str, Shape] = {}
    views: dict[str, Shape] = {}
    links: list[Link] = []
    for rule in rules:
        with collecting(faults):
            known = rule.stored if is_stored else rule.original
            weights = heads.weights(rule.sections)
            unit = _group_unit(rule, heads)
            sizes = read_sizes(known, given, weights, unit)
            originals.update(shapes_of(rule.original, sizes))
            stored.update(shapes_of(rule.stored, sizes))
            if view := view_of(rule.stored, sizes):
                views[rule.stored.names[0]] = view
            for section in range(len(sizes.outputs)):
                [whole], parts = (
                    list(spans(rule.original, sizes, section)),
                    spans(rule.stored, sizes, section),
                )
                links += (_link(rule, whole, part, sizes.inputs is not None) for part in parts)
    raise_if_any(faults)
    found = Correspondence(originals, stored, views, tuple(links))
    raise_if_any(correspondence_faults(found))
    return found


def correspondence_faults(names: Correspondence) -> list[str]:
    """Whether the links hold every element of both sides once."""
    originals: dict[str, list[Region]] = {name: [] for name in names.originals}
    stored: dict[str, list[Region]] = {name: [] for name in names.stored}
    faults: list[str] = []
    for link in names.links:
        if region_shape(oriented(link.place, link.transposed)) != region_shape(link.box):
            faults.append(f"tensor {shown(link.stored)}: {shown_region(link.place)} has other sizes")
        originals[link.original].append(link.box)
        stored[link.stored].append(link.place)
    for name, regions in originals.items():
        faults += _tiling_faults(name, names.originals[name], regions)
    for name, regions in stored.items():
        faults += _tiling_faults(name, names.view(name), regions)
    return faults


def _tiling_faults(name: str, shape: Shape, regions: Sequence[Region]) -> Iterator[str]:
    for region in regions:
        if not is_inside(region, full_region(shape)):
            yield f"tensor {shown(name)}: {shown_region(region)} is outside {[*shape]}"
            return
    if (twice := first_overlap(regions)) is not None:
        yield f"tensor {shown(name)}: {shown_region(twice)} is there twice"
    elif sum(map(volume, regions)) != volume(full_region(shape)):
        lost = uncovered(full_region(shape), regions)[0]
        yield f"tensor {shown(name)}: {shown_region(lost)} is in no tensor of the other names"


def _group_unit(rule: Rule, heads: Heads) -> int | None:
    """Outputs of the last section in a group of the stored tensor, None where it is not grouped."""
    if len(rule.stored.names) == len(rule.sections.value) or rule.stored.order is not Order.GROUPED:
        return None
    return heads.head_dim if rule.sections is Sections.QKV else 1


def _link(rule: Rule, whole: Span, part: Span, is_matrix: bool) -> Link:
    """The part's outputs within the Hugging Face tensor, which holds its sections in one piece."""
    along = 1 if is_matrix and rule.original.transposed else 0
    first = whole.box[along][0] + part.start
    rows = (first, first + part.stop - part.start)
    box = (*whole.box[:along], rows, *whole.box[along + 1 :])
    transposed = is_matrix and rule.original.transposed != rule.stored.transposed
    return Link(whole.name, box, part.name, part.box, transposed)


def _rule_for(dialect: Dialect, name: str, given: Mapping[str, Shape], *, is_stored: bool) -> Rule:
    """The rule that the tensor belongs to, with its layer put in.

    CheckpointError when there is none, or when other tensors of it are missing.
    """
    plain, layer = _without_layer(name)
    known = _rules_by_name(dialect, is_stored)
    if plain not in known:
        side = "MindFormers" if is_stored else "Hugging Face"
        near = did_you_mean(plain, known).replace(_LAYER, layer)
        raise CheckpointError(f"tensor {shown(name)}: no {side} name of this model type{near}")
    rule = known[plain]
    rule = replace(rule, original=_filled(rule.original, layer), stored=_filled(rule.stored, layer))
    names = (rule.stored if is_stored else rule.original).names
    if missing := [each for each in names if each not in given]:
        raise CheckpointError(f"tensor {shown(name)}: goes with {', '.join(missing)}, which is missing")
    return rule


def _without_layer(name: str) -> tuple[str, str]:
    """The name with {layer} for its first number, and that number."""
    match = _NUMBER.search(name)
    if match is None:
        return name, ""
    return f"{name[: match.start(1)]}{_LAYER}{name[match.end(1) :]}", match[1]


@cache
def _rules_by_name(dialect: Dialect, is_stored: bool) -> dict[str, Rule]:
    return {
        name: rule for rule in dialect.rules for name in (rule.stored if is_stored else rule.original).names
    }


def _filled(form: Form, layer: str) -> Form:
    return replace(form, names=tuple(name.replace(_LAYER, layer) for name in form.names))
