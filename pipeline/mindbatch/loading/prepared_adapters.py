"""Opens the adapters of the section `lora`, and checks them against the model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.checkpoint.error_lines import located
from mindbatch.engine.adapter_slots import AdapterSlots, KnownAdapters, LiveAdapter
from mindbatch.io.errors import CheckpointError, ConfigError

if TYPE_CHECKING:  # most jobs have no adapters
    from mindbatch.backends.adapter_weights import FittedAdapters
    from mindbatch.checkpoint.lora.adapter import LoraAdapter
    from mindbatch.checkpoint.lora.merge import MergedWeights
    from mindbatch.config.lora_schema import AdapterFolder, LoraConfig
    from mindbatch.loading.providers import OpenedFolder, Provider

Stamp = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class PreparedAdapters:
    """Validated adapters; MindSpore is not needed for them.

    known: the names that requests may use. live: adapters that are computed beside the base, if any.
    merged: the weights with an adapter added, for lora.mode=merge. warnings: lines for the user.
    """

    known: KnownAdapters = field(default_factory=KnownAdapters)
    live: FittedAdapters | None = None
    merged: MergedWeights | None = None
    warnings: tuple[str, ...] = ()

    def slots(self) -> AdapterSlots | None:
        return None if self.live is None else AdapterSlots(self.live.max_loaded)


NO_ADAPTERS = PreparedAdapters()


def open_adapters(lora: LoraConfig, base: Path | None = None) -> dict[str, LoraAdapter]:
    """Opens the adapters that have a folder, by name, and checks each alone.

    base: the model's folder, which is compared with the name of the base that an adapter records.

    Raises:
        CheckpointError: lists the errors of all adapters.
    """
    errors: list[str] = []
    opened: dict[AdapterFolder, LoraAdapter] = {}
    for name, folder in lora.folders.items():
        try:
            if folder not in opened:
                opened[folder] = _open_once(folder, None if base is None else str(base))
        except (CheckpointError, ConfigError) as error:
            errors += [f"lora.adapters.{name}: {problem}" for problem in error.lines]
    if errors:
        raise CheckpointError(errors)
    return {name: opened[folder] for name, folder in lora.folders.items()}


_opened: dict[tuple[AdapterFolder, str | None, Stamp], LoraAdapter] = {}


def _open_once(folder: AdapterFolder, base: str | None) -> LoraAdapter:
    """Returns an adapter that this process has opened before if its files are unchanged, or opens it.

    A run needs the digests of adapters before it loads them. Loading compares the files in any case.
    """
    from mindbatch.checkpoint.lora.adapter import open_adapter

    key = (folder, base, _stamp(folder.path))
    if key not in _opened:
        _opened[key] = open_adapter(*folder, base=base)
    return _opened[key]


def _stamp(path: Path) -> Stamp:
    """Returns a stamp that changes when a file of the adapter, or one beside it, is written."""
    folder = path if path.is_dir() else path.parent
    try:
        return tuple(
            (entry.name, (at := entry.stat()).st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
        )
    except OSError:  # `open_adapter` says what is wrong
        return ()


def prepare_adapters(lora: LoraConfig, opened: OpenedFolder, provider: Provider) -> PreparedAdapters:
    """Opens the adapters and checks them against the model; plans the merge of `lora.mode=merge`.

    Raises:
        CheckpointError: lists the errors of all adapters, in themselves and against the model.
        ConfigError: an adapter was merged into the weights before.
    """
    if not lora.names:
        return NO_ADAPTERS
    (folder, spec), adapters = opened, open_adapters(lora, opened.folder.path.resolve())
    warnings = tuple(
        f"lora.adapters.{name}: {warning}"
        for name, adapter in adapters.items()
        for warning in adapter.warnings
    )
    if lora.is_merged:
        [(name, adapter)] = adapters.items()
        with located(f"lora.adapters.{name}"):
            merged = provider.merge(spec, folder, adapter)
        return PreparedAdapters(KnownAdapters({name: None}, name), None, merged, warnings)
    live = {
        name: LiveAdapter(name, adapters[name].digest) if name in adapters else None for name in lora.names
    }
    fitted = provider.fit_adapters(spec, adapters, lora.max_loaded) if adapters else None
    if fitted is not None:
        from mindbatch.checkpoint.folders.resharded import refuse_merged_before

        digests = {
            f"lora.adapters.{name}={adapter.adapter.path}": adapter.digest
            for name, adapter in fitted.adapters.items()
        }
        refuse_merged_before(digests, folder.path)
    return PreparedAdapters(KnownAdapters(live, lora.default), fitted, None, warnings)
