"""Modules that an adapter's settings target, by the rules of PEFT."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, shown
from mindbatch.checkpoint.lora.module_pattern import ModulePattern

ALL_LINEAR = "all-linear"
_MAX_PARTS = 16  # dots of a name are not so many; a hostile one has hundreds
_FIRST_NUMBER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True)
class Names:
    """Modules by their names, or by the ends of these after a dot."""

    names: frozenset[str] = frozenset()

    def match(self, module: str) -> str | None:
        """The name that the module is meant by."""
        return next((end for end in _ends(module) if end in self.names), None)


@dataclass(frozen=True)
class Pattern:
    """Modules by a regular expression.

    at_last: as MindFormers has it, also by the beginning of their last name.
    """

    text: str
    pattern: ModulePattern
    at_last: bool = False

    def match(self, module: str) -> str | None:
        """The expression, if it matches the module."""
        if self.pattern.matches(module):
            return self.text
        is_met = self.at_last and self.pattern.matches_start(module.rpartition(".")[2])
        return self.text if is_met else None


@dataclass(frozen=True)
class Targets:
    """Modules to adapt: those of `wanted`, None where none are stated, except the excluded ones.

    saved: those that have a full weight instead. layers: with `wanted` names alone: only modules in these
    layers; layer_names: what stands before a layer's number, any where that is empty. all_linear: every
    linear module but the head.
    """

    wanted: Names | Pattern | None = None
    excluded: Names | Pattern = Names()
    saved: Names = Names()
    layers: frozenset[int] | None = None
    layer_names: tuple[str, ...] = ()
    all_linear: bool = False

    def meant_by(self, module: str) -> str | None:
        """The target that means the module; None where none does, or `wanted` is None."""
        if self.wanted is None or self.excluded.match(module) or _is_within(module, self.saved.names):
            return None
        target = self.wanted.match(module)
        if target is None or target == module or self.layers is None or isinstance(self.wanted, Pattern):
            return target
        layer = self._layer_of(module)
        return target if layer is not None and layer in self.layers else None

    @property
    def text(self) -> object:
        """Wanted modules for a message: the pattern, or the sorted names."""
        return (
            self.wanted.text
            if isinstance(self.wanted, Pattern)
            else sorted(self.wanted.names if self.wanted else ())
        )

    def faults(self, modules: Collection[str]) -> Iterator[str]:
        """Modules that are adapted though no target, and targets of which nothing is there."""
        if self.wanted is None:
            return
        for module in modules:
            if self.meant_by(module) is None:
                where = (
                    "" if self.layers is None else f" in layers_to_transform, {shown(sorted(self.layers))}"
                )
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
    """True if the module is one of these, or inside one."""
    dotted = f".{module}."
    return any(f".{name}." in dotted for name in names)


def _ends(module: str) -> Iterator[str]:
    """The module's name, and what of it is left after each of the last dots that a target may have."""
    parts = module.split(".")
    for first in {0, *range(max(0, len(parts) - _MAX_PARTS), len(parts))}:
        yield ".".join(parts[first:])
