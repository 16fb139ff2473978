"""Modules that an adapter's settings target, by the rules of PEFT."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Any

import regex

from mindbatch.checkpoint.error_lines import MAX_LINES, did_you_mean, shown
from mindbatch.checkpoint.lora.names import is_vocabulary
from mindbatch.io.regex_tree import TOO_DEEP, regex_tree

MAX_CHARACTERS = 10_000
MAX_REPEATED = 100_000
"""Characters of an expression times its numbers of repeats: `regex` writes them out when it compiles."""
MAX_SECONDS = 5.0
"""Of a processor, for one expression and all names."""

_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")
_OWN_SYNTAX = re.compile(r"\[:|\{(?!\d*,?\d*\})")
"""Named sets and fuzzy matches of `regex`, which are plain characters to `re`."""


class ModulePattern:
    """A regular expression of Python's `re`. ValueError says why it cannot be used.

    at_last: True if it also matches the beginning of a module's last name, as in MindFormers.
    """

    def __init__(self, pattern: str, at_last: bool = False) -> None:
        self.text, self._at_last = pattern, at_last
        regex_tree(pattern, MAX_CHARACTERS)  # `regex` takes more than `re`, by which PEFT reads it
        if own := _OWN_SYNTAX.search(pattern):
            raise ValueError(f"has {own[0]!r}, which is not supported in names of modules")
        counts = (max(1, *(int(number or 0) for number in pair)) for pair in _COUNTS.findall(pattern))
        if len(pattern) * math.prod(counts) > MAX_REPEATED:
            raise ValueError("repeats too often")
        try:
            self._pattern = regex.compile(pattern, regex.VERSION0)
        except RecursionError as error:
            raise ValueError(TOO_DEEP) from error
        except regex.error as error:
            raise ValueError(f"is no regular expression ({error})") from error
        self._seconds = MAX_SECONDS

    def match(self, module: str) -> str | None:
        """Returns the expression if it matches the module. ValueError as for `matches`."""
        is_met = self.matches(module) or (self._at_last and self.matches_start(module.rpartition(".")[2]))
        return self.text if is_met else None

    def matches(self, name: str) -> bool:
        """Matches as re.fullmatch. ValueError when that takes too long."""
        return self._run(self._pattern.fullmatch, name)

    def matches_end(self, name: str) -> bool:
        """True if the full name, or what follows one of its dots, matches; ValueError as of `matches`."""
        starts = [0, *(position + 1 for position, character in enumerate(name) if character == ".")]
        return any(self._run(self._pattern.fullmatch, name, start) for start in starts)

    def matches_start(self, name: str) -> bool:
        """Matches as re.match. ValueError as of `matches`."""
        return self._run(self._pattern.match, name)

    def _run(self, match: Callable[..., Any], name: str, start: int = 0) -> bool:
        """Runs a match, during which other threads go on; time left for this expression becomes less."""
        before = thread_time()
        try:
            return match(name, start, concurrent=True, timeout=max(0.001, self._seconds)) is not None
        except (TimeoutError, MemoryError) as error:
            raise ValueError("takes too long to be matched") from error
        finally:
            self._seconds -= thread_time() - before


ALL_LINEAR = "all-linear"
MAX_TARGETS = 1000
_MAX_LAYER = 1_000_000
_ANYTHING = ".*"
_MAX_PARTS = 16  # dots of a name are not so many; a hostile one has hundreds
_FIRST_NUMBER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True)
class Names:
    """Modules by their names, or by the ends of these after a dot."""

    names: frozenset[str] = frozenset()

    def match(self, module: str) -> str | None:
        """Returns the name that matches the module."""
        return next((end for end in _ends(module) if end in self.names), None)


@dataclass(frozen=True)
class Targets:
    """Modules to adapt: those of `wanted`, None where none are stated, except the excluded ones.

    saved: those that have a full weight instead. layers: with `wanted` names alone: only modules in these
    layers; layer_names: what stands before a layer's number, any where that is empty. all_linear: every
    linear module but the head.
    """

    wanted: Names | ModulePattern | None = None
    excluded: Names | ModulePattern = Names()
    saved: Names = Names()
    layers: frozenset[int] | None = None
    layer_names: tuple[str, ...] = ()
    all_linear: bool = False

    def meant_by(self, module: str) -> str | None:
        """Returns the target that matches the module; None if none does, or `wanted` is None."""
        if self.wanted is None or self.excluded.match(module) or _is_within(module, self.saved.names):
            return None
        target = self.wanted.match(module)
        if (
            target is None
            or target == module
            or self.layers is None
            or isinstance(self.wanted, ModulePattern)
        ):
            return target
        layer = self._layer_of(module)
        return target if layer is not None and layer in self.layers else None

    @property
    def text(self) -> object:
        """Wanted modules for a message: the pattern, or the sorted names."""
        if isinstance(self.wanted, ModulePattern):
            return self.wanted.text
        return sorted(self.wanted.names) if self.wanted else []

    def errors(self, modules: Collection[str]) -> Iterator[str]:
        """Lists modules that are adapted without being targets, and targets without any module."""
        if self.wanted is None:
            return
        for module in modules:
            if self.meant_by(module) is None:
                layers = self.layers
                where = "" if layers is None else f" in layers_to_transform, {shown(sorted(layers))}"
                yield f"module {shown(module)} is none of target_modules, {shown(self.text)}{where}"
        if isinstance(self.wanted, Names) and modules:
            yield from self._unmet(self.wanted, modules)

    def _unmet(self, wanted: Names, modules: Collection[str]) -> Iterator[str]:
        last_names = {module.rpartition(".")[2] for module in modules}
        met = {end for module in modules for end in _ends(module)}
        unmet = (name for name in sorted(wanted.names) if name not in met and not self._leaves_out(name))
        for number, target in enumerate(unmet):
            near = did_you_mean(target, last_names) if number < MAX_LINES else ""
            yield f"target_modules has {shown(target)}, of which there are no matrices{near}"

    def _leaves_out(self, target: str) -> bool:
        return self.excluded.match(target) is not None or _is_within(target, self.saved.names)

    def _layer_of(self, module: str) -> int | None:
        if not self.layer_names:
            match = _FIRST_NUMBER.match(module)
            return _number(match[1]) if match else None
        parts = module.split(".")
        for name in self.layer_names:
            for before, number, _ in zip(parts, parts[1:], parts[2:], strict=False):
                if before == name and number.isdecimal():
                    return _number(number)
        return None


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) < 10 else None


def _is_within(module: str, names: Collection[str]) -> bool:
    dotted = f".{module}."
    return any(f".{name}." in dotted for name in names)


def _ends(module: str) -> Iterator[str]:
    """The module's name, and what of it is left after each of the last dots that a target may have."""
    parts = module.split(".")
    for first in {0, *range(max(0, len(parts) - _MAX_PARTS), len(parts))}:
        yield ".".join(parts[first:])


def targets_of(content: Mapping[str, Any], errors: list[str]) -> Targets:
    """Reads the modules that an adapter_config.json targets; `errors` gets a line for each wrong key."""
    targets, excludes = content.get("target_modules"), content.get("exclude_modules")
    layers, layer_names = content.get("layers_to_transform"), content.get("layers_pattern") or []
    is_all = isinstance(targets, str) and targets.lower() == ALL_LINEAR
    wanted = _matcher("target_modules", targets, errors, at_last="peft_type" not in content)
    excluded = _matcher("exclude_modules", None if excludes in ([], "") else excludes, errors)
    num_errors = len(errors)
    errors += [*_saved_errors(content.get("modules_to_save")), *_layer_errors(content)]
    if len(errors) > num_errors:
        return Targets()
    return Targets(
        wanted=None if is_all else wanted,
        excluded=excluded or Names(),
        saved=Names(frozenset(content.get("modules_to_save") or [])),
        layers=None if layers in (None, []) else frozenset([layers] if isinstance(layers, int) else layers),
        layer_names=(layer_names,) if isinstance(layer_names, str) else tuple(layer_names),
        all_linear=is_all,
    )


def _matcher(
    key: str, modules: Any, errors: list[str], *, at_last: bool = False
) -> Names | ModulePattern | None:
    """Matches the modules of a key; MindFormers writes the beginning of its expression before each name."""
    if modules is None:
        return None
    matcher: Names | ModulePattern | None = None
    if isinstance(modules, str):
        listed = modules.split("|")
        try:
            matcher = ModulePattern(modules, at_last)
        except ValueError as error:
            errors.append(f"{key}={shown(modules)}: {error}")
    elif isinstance(modules, list):
        listed = modules
        if modules and all(isinstance(name, str) and name for name in modules):
            matcher = Names(frozenset(name.removeprefix(_ANYTHING) for name in modules))
        else:
            errors.append(f"{key}={shown(modules)}: must be names of modules")
    else:
        errors.append(f"{key}={shown(modules)}: must be names of modules, or a pattern")
        return None
    if len(listed) > MAX_TARGETS:
        errors.append(f"{key}: {len(listed)} names; at most {MAX_TARGETS} are allowed")
    return matcher


def _saved_errors(value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        yield f"modules_to_save={shown(value)}: must be names of modules"
    elif any(not is_vocabulary(name) for name in value):
        yield (
            f"modules_to_save={shown(value)}: whole modules other than head and token embedding, such "
            "as a classification head, are not supported; may be 'lm_head' and 'embed_tokens'"
        )


def _layer_errors(content: Mapping[str, Any]) -> Iterator[str]:
    layers, names = content.get("layers_to_transform"), content.get("layers_pattern")
    listed = layers if isinstance(layers, list) else [layers]
    if layers is not None and not all(
        isinstance(layer, int) and not isinstance(layer, bool) and 0 <= layer < _MAX_LAYER for layer in listed
    ):
        yield f"layers_to_transform={shown(layers)}: must be numbers of layers"
    if layers not in (None, []) and isinstance(content.get("target_modules"), str):
        yield f"layers_to_transform={shown(layers)}: not with a pattern as target_modules, by PEFT neither"
    if not names:
        return
    listed = names if isinstance(names, list) else [names]
    if not all(isinstance(name, str) and name.replace("_", "").isalnum() for name in listed):
        yield f"layers_pattern={shown(names)}: must be names of lists of layers, such as 'layers'"
    if layers is None:
        yield f"layers_pattern={shown(names)}: has no effect without layers_to_transform"
