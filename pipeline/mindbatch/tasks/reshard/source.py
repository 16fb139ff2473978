"""Opens the source of `mindbatch reshard`: its tensors, their model, and the location of each tensor."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.error_lines import first_lines, located, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.checkpoint.folders.model_folder import match_tensors
from mindbatch.checkpoint.folders.resharded import noted_settings
from mindbatch.checkpoint.folders.tensor_set import (
    HUGGING_FACE,
    ITERATION,
    RANKS,
    SINGLE_FILE,
    Source,
    copy_errors,
    open_source,
    seem_copies,
)
from mindbatch.checkpoint.folders.widened import WidenedSet
from mindbatch.checkpoint.formats.floats import STORED_FLOATS
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.checkpoint.iterations.metadata import placements as iteration_placements
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import (
    Placement,
    Placements,
    RankFiles,
    as_rank_files,
    whole_placements,
)
from mindbatch.checkpoint.reshard.replicas import digest_errors
from mindbatch.checkpoint.strategy.placements import full_shapes, strategy_placements
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.config_json.forms import has_text_part
from mindbatch.config_json.quantisation import open_quantised
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.described_folder import as_stored, checkpoint_names, described_config
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import unused_tensors
from mindbatch.tasks.reshard.names import MINDFORMERS, Naming, named, source_naming
from mindbatch.tasks.reshard.schema import ReshardConfig


@dataclass
class ReshardSource:
    """An opened source. folder: the folder of config.json, if there is one.

    stored_as: names in the files by the model's names, if they differ: names without prefix, or the head as
        which a tied embedding is stored. needed: names in the files that the model needs.
    files: the shards in each rank's file. naming: MindFormers' names; None for Hugging Face's.
    """

    source: Source
    folder: Path | None
    model: ModelSpec | None
    files: RankFiles
    stored_as: Mapping[str, str] = field(default_factory=dict)
    needed: Collection[str] = ()
    notes: list[str] = field(default_factory=list)
    naming: Naming | None = None

    @property
    def is_widened(self) -> bool:
        """True if the source's weights are quantised, and read as floats."""
        return isinstance(self.source.ranks[0], WidenedSet)

    def model_placements(self, model_parallel: int, stages: int, keys: str = "") -> dict[str, Placement]:
        assert self.model is not None
        by_name = placements(self.model.parameters, model_parallel, stages, keys=keys)
        renamed = {self.stored_as.get(name, name): placement for name, placement in by_name.items()}
        return {name: replace(placement, name=name) for name, placement in renamed.items()}

    @cached_property
    def stored_names(self) -> dict[str, tuple[str, ...]]:
        return self.files.stored_names()

    def dtype(self, name: str) -> str:
        """Returns the dtype of a tensor of the model, in the first file that has it."""
        return self.source.dtype(self.stored_names[name][0])

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Patterns of tensors that files may have without any use."""
        of_model = () if self.model is None else unused_tensors(self.model.architecture)
        return of_model if self.naming is None else (*self.naming.dialect.unused, *of_model)

    def is_unused(self, name: str) -> bool:
        return name not in self.needed and any(fnmatchcase(name, pattern) for pattern in self.unused)


def open_reshard_source(config: ReshardConfig) -> ReshardSource:
    """Opens the source and locates its tensors.

    Raises:
        ConfigError: there is no checkpoint or no config.json, or the numbers of ranks are impossible.
        CheckpointError: lists tensors that are damaged or do not fit the model.
    """
    assert config.source is not None
    source = _widened(config) or open_source(config.source)
    with closed_on_error(source):
        return _opened(config, source)


def _widened(config: ReshardConfig) -> Source | None:
    """The source as floats, if it is a model's folder with quantised weights."""
    home = Path(config.source or "")
    folder = open_quantised(home, config.ignore_config_keys) if home.is_dir() else None
    if folder is None:
        return None
    with closed_on_error(folder):
        if config.target.dtype == "keep":
            raise ConfigError(
                f"target.dtype=keep: {home} is stored as {folder.quantised}, and is written as floats; "
                f"allowed: {', '.join(STORED_FLOATS)}"
            )
        return Source(home, HUGGING_FACE, [WidenedSet(folder)])


def _opened(config: ReshardConfig, source: Source) -> ReshardSource:
    source.check_sums()
    if is_copied := _are_copies(config, source):
        source = Source(source.path, SINGLE_FILE, source.ranks[:1])
    folder = _model_folder(config, source)
    model = _model(folder, config.ignore_config_keys, source) if folder else None
    names = {name for rank in source.ranks for name in rank.tensors}
    naming = source_naming(config, model.architecture if model else None, source.path, names)
    stored_as = _stored_as(model, names) if model is not None and naming is None else {}
    needed = frozenset(stored_as.values())
    opened = ReshardSource(source, folder, model, RankFiles({}, ()), stored_as, needed, naming=naming)
    if source.kind == ITERATION:
        opened.files = _of_iteration(config, opened)
    elif config.source_strategy is not None:
        opened.files = _by_strategy(Path(config.source_strategy), opened)
    elif model is not None:
        model_parallel, stages = _ranks(config, source)
        model_placements = opened.model_placements(model_parallel, stages, "source: ")
        opened.files = named(naming, model_placements, model_parallel, len(source.ranks))
    elif source.kind == RANKS:
        raise ConfigError(
            f"source={source.path}: rank folders without {CONFIG_NAME}; give source_config=FOLDER of "
            "the model, or source_strategy=FILE"
        )
    else:
        if not is_copied:
            _refuse_one_rank_of_several(source)
        (only,) = source.ranks
        opened.files = as_rank_files(whole_placements(only.shapes), 1)
    if stored_as and config.target.names == MINDFORMERS:
        _name_fully(opened)
    if isinstance(first := source.ranks[0], WidenedSet):
        opened.notes += first.notes
    if is_copied:
        opened.notes.append(
            f"{source.path}: the rank folders hold copies of one checkpoint, all the same; the first is read"
        )
    _note_names(opened)
    raise_if_any(_errors(opened))
    raise_if_any(digest_errors(opened.files, source.ranks))
    return opened


def _stored_as(model: ModelSpec, stored: Collection[str]) -> dict[str, str]:
    """Returns the names in the files by the model's names, for those that differ."""
    names = checkpoint_names(model.architecture, [*stored])
    return {name: names(name) for name in source_shapes(model.parameters) if names(name) != name}


def _are_copies(config: ReshardConfig, source: Source) -> bool:
    """True if each rank folder has the same whole checkpoint. Raises CheckpointError if one differs."""
    is_known = config.source_strategy is not None or bool(noted_settings(source.path))
    if source.kind != RANKS or is_known or not seem_copies(source.ranks):
        return False
    raise_if_any(copy_errors(source.ranks))
    return True


def _refuse_one_rank_of_several(source: Source) -> None:
    """Refuses the folder of one rank, because nothing shows if its tensors are whole or shards."""
    (only,) = source.ranks
    home = next(iter(only.files.values())).path.resolve().parent
    if re.fullmatch(r"rank_\d+", home.name) and len(ranks := [*home.parent.glob("rank_*")]) > 1:
        raise ConfigError(
            f"source={source.path}: one of {len(ranks)} rank folders, whose tensors may be slices; give "
            f"source={home.parent}, or source_config=FOLDER of the model if this one is whole"
        )


def _name_fully(opened: ReshardSource) -> None:
    """Renames the tensors to the names of the whole model; the files keep their own names."""
    assert opened.model is not None
    names = source_shapes(opened.model.parameters)
    full = {opened.stored_as.get(name, name): name for name in names}
    shapes = {full[name]: shape for name, shape in opened.files.shapes.items()}
    ranks = tuple(
        {name: stored.of_renamed(full) for name, stored in tensors.items()} for tensors in opened.files.ranks
    )
    opened.files = RankFiles(shapes, ranks, is_renamed=True)
    opened.stored_as = {}


def _model_folder(config: ReshardConfig, source: Source) -> Path | None:
    if config.source_config is not None:
        return Path(config.source_config)
    folder = source.path.parent if source.path.is_file() else source.path
    folders = [folder, folder.parent] if source.kind == ITERATION else [folder]
    return next((candidate for candidate in folders if has_file(candidate, CONFIG_NAME)), None)


def _model(folder: Path, ignored_keys: Sequence[str], stored: Source) -> ModelSpec:
    ignore = IgnoredKeys(tuple(ignored_keys), "ignore_config_keys")
    is_widened = isinstance(stored.ranks[0], WidenedSet)
    config, source, architecture = described_config(folder, ignore=ignore, to_be_run=is_widened)
    if has_text_part(config):
        raise ConfigError(
            f"{source}: a multimodal model, whose text part runs as it is and is not resharded; "
            "parallel.model_parallel cuts it as it is loaded"
        )
    for rank in stored.ranks:
        architecture = as_stored(architecture, rank)
    return ModelSpec.of(architecture)


def _ranks(config: ReshardConfig, source: Source) -> tuple[int, int]:
    """Returns model_parallel and pipeline_stage of the source."""
    if source.kind != RANKS:
        if config.source_pipeline_stage not in (None, 1):
            raise ConfigError(f"source_pipeline_stage: {source.path} has no rank folders; remove it")
        return 1, 1
    noted = noted_settings(source.path).get("pipeline_stage")
    stages = config.source_pipeline_stage or (noted if isinstance(noted, int) and noted > 0 else 1)
    model_parallel, over = divmod(len(source.ranks), stages)
    if over:
        raise ConfigError(
            f"source_pipeline_stage={stages}: must divide the {len(source.ranks)} rank folders of "
            f"{source.path}"
        )
    return model_parallel, stages


def _of_iteration(config: ReshardConfig, opened: ReshardSource) -> RankFiles:
    """Locates the shards of a Checkpoint 2.0 by its own metadata."""
    for key in ("source_strategy", "source_pipeline_stage"):
        if getattr(config, key) is not None:
            raise ConfigError(
                f"{key}: has no effect on a Checkpoint 2.0, whose metadata.json says it; remove it"
            )
    return _cut(opened, iteration_placements(opened.source.path, opened.source.ranks))


def _by_strategy(path: Path, opened: ReshardSource) -> RankFiles:
    strategy = read_strategy(path)
    with located(opened.source.path):
        shapes = full_shapes(strategy, [rank.shapes for rank in opened.source.ranks])
        return _cut(opened, strategy_placements(strategy, shapes))


def _cut(opened: ReshardSource, stored: Placements) -> RankFiles:
    """Locates the shards of a source by placements that its files describe, without unused tensors."""
    used = {name: placement for name, placement in stored.items() if not opened.is_unused(name)}
    num_ranks = len(opened.source.ranks)
    return opened.naming.cut(used, num_ranks) if opened.naming else as_rank_files(used, num_ranks)


def _note_names(opened: ReshardSource) -> None:
    """Adds notes on names of the source that the user may not expect."""
    names = {name: None for rank in opened.source.ranks for name in rank.tensors}
    if opened.naming is not None:
        fused = ", queries, keys and values in one" if opened.naming.options.qkv_concat else ""
        opened.notes.append(f"{opened.source.path}: the tensors have MindFormers' names{fused}")
    if dropped := [name for name in names if opened.is_unused(name)]:
        listed = ", ".join(first_lines(dropped, shown, limit=3, noun="tensors"))
        opened.notes.append(f"{opened.source.path}: left out, for the model does not use them: {listed}")


def _errors(opened: ReshardSource) -> list[str]:
    """Checks that each rank has its tensors, and that all have the same dtype."""
    errors: list[str] = []
    for number, rank in enumerate(opened.source.ranks):
        errors += match_tensors(opened.files.stored_shapes(number), rank, opened.unused, DTYPES)
    return errors + opened.source.dtype_errors(opened.is_unused)
