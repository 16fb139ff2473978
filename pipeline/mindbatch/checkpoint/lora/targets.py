"""Which modules the settings of an adapter mean."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, shown

_MAX_TARGET_PARTS = 16  # dots of a name are not so many; a hostile one has hundreds


def target_faults(modules: Collection[str], targets: Sequence[str]) -> Iterator[str]:
    """Modules that are adapted though no target, and targets of which nothing is there."""
    if not modules:
        yield "no pair of lora_A and lora_B"
    last_names = {module.rpartition(".")[2] for module in modules}
    shown_targets, wanted = shown([*targets]), {*targets}
    for module in modules:
        if targets and not target_of(module, wanted):
            yield f"module {shown(module)} is none of target_modules, {shown_targets}"
    met = {end for module in modules for end in _ends(module)} if targets else set()
    unmet = [target for target in targets if modules and target not in met]
    for number, target in enumerate(unmet):
        near = did_you_mean(target, last_names) if number < MAX_LINES else ""
        yield f"target_modules has {shown(target)}, of which there are no matrices{near}"


def target_of(module: str, targets: Collection[str]) -> str | None:
    """The target that the module is meant by: its name, or the end of it after a dot."""
    return next((end for end in _ends(module) if end in targets), None)


def _ends(module: str) -> Iterator[str]:
    """The module's name, and what of it is left after each of the last dots that a target may have."""
    parts = module.split(".")
    for first in {0, *range(max(0, len(parts) - _MAX_TARGET_PARTS), len(parts))}:
        yield ".".join(parts[first:])
