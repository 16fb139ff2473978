"""`mindbatch plan` over several ranks: what each holds of a native model, and MindSpore's files of it.

Only config.json is needed. Weights are opened where they are there, for their names and dtypes; no more than
their headers is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, existing_folder, file_names
from mindbatch.checkpoint.folders.model_folder import ModelFolder, is_cut
from mindbatch.checkpoint.folders.weight_files import weights_in
from mindbatch.checkpoint.formats.floats import STORED_FLOATS
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.checkpoint.placement.placements import (
    LayoutRow,
    allowed_model_parallel,
    check_sizes,
    layout_rows,
    placements,
    with_replicas,
)
from mindbatch.checkpoint.placement.regions import Placement, Placements
from mindbatch.checkpoint.strategy.placements import stage_strategies
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes, strategy_name
from mindbatch.config.model_schema import ParallelConfig, ignored_keys
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.loading.providers import open_model
from mindbatch.models.architecture import Architecture
from mindbatch.models.described_config import described_config
from mindbatch.models.folder_tensors import checkpoint_names
from mindbatch.models.registry import tensor_specs
from mindbatch.models.stage_cut import cut, even_in_time
from mindbatch.models.tensor_spec import TensorSpec
from mindbatch.parallel.topology import DeviceMap, Stage
from mindbatch.tasks.plan.layout import refuse_other_files, write_strategies
from mindbatch.tasks.plan.schema import PlanConfig

_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class RankPlan:
    """Shards that each rank holds. dtype_from: in words. files: the content of the strategy files by name.

    is_cut: the folder is of rank folders, whose stages no device_map changes.
    """

    architecture: Architecture
    parallel: ParallelConfig
    stages: Sequence[Stage]
    placements: Placements
    dtypes: Mapping[str, str]
    dtype_from: str
    files: Mapping[str, bytes]
    is_cut: bool = False

    @property
    def num_ranks(self) -> int:
        return self.ranks_of_stage * self.parallel.pipeline_stage

    @property
    def ranks_of_stage(self) -> int:
        return self.parallel.data_parallel * self.parallel.model_parallel

    @property
    def device_map(self) -> DeviceMap:
        """Device map that divides the layers of a run as they are divided here."""
        is_free = not self.is_cut and len(self.stages) > 1
        return tuple(len(stage.layers) for stage in self.stages) if is_free else None

    @property
    def rows(self) -> list[LayoutRow]:
        return layout_rows(self.placements, {name: DTYPES[dtype] for name, dtype in self.dtypes.items()})


def plan_ranks(config: PlanConfig) -> RankPlan:
    """Works the plan out; writes nothing.

    Raises:
        ConfigError: the model cannot be cut so, MindSpore's strategy files cannot describe it, or layout.dir
            holds something else.
        CheckpointError: a damaged folder, weights that are not the model's, an unknown dtype.
    """
    assert config.model.checkpoint_name_or_path is not None
    path, parallel = existing_folder(config.model.checkpoint_name_or_path), config.parallel
    weights: ModelFolder | None = None
    content: Mapping[str, Any]
    if weights_in(file_names(path)):
        weights, spec = open_model(config.model)
        content, arch = weights.config, spec.architecture
    else:
        content, _, arch = described_config(path, config.model.type, ignored_keys(config.model))
    specs = tensor_specs(arch)
    sizes, device_map = (parallel.model_parallel, parallel.pipeline_stage), parallel.layer_counts
    check_sizes(specs, *sizes, device_map, keys="parallel.")
    chooses_stages = config.data.path is not None and config.layout.dir is None and not is_cut(path)
    if device_map is None and chooses_stages:  # strategy files and rank folders are of even stages
        device_map = even_in_time(specs, parallel.pipeline_stage)
    placed = placements(specs, *sizes, device_map)
    if weights is not None:
        placed = _as_named(placed, checkpoint_names(arch, weights.names))
    dtypes, dtype_from = _dtypes(config.model.dtype, content, weights, placed)
    copies = with_replicas(placed, parallel.model_parallel, parallel.data_parallel)
    files = {} if config.layout.dir is None else _files(specs, parallel, copies)
    if config.layout.dir is not None:
        refuse_other_files(Path(config.layout.dir), files)
    stages = cut(specs, parallel.pipeline_stage, device_map)
    return RankPlan(arch, parallel, stages, copies, dtypes, dtype_from, files, is_cut(path))


def write_files(config: PlanConfig, plan: RankPlan) -> list[Path]:
    """Writes the strategy files to layout.dir, if that is given. ConfigError where others are there."""
    if config.layout.dir is None:
        return []
    return write_strategies(Path(config.layout.dir), plan.files, config.layout.replace)


def _as_named(placed: Placements, names: Callable[[str], str]) -> dict[str, Placement]:
    """The placements under the names that the weights have."""
    return {names(name): replace(placement, name=names(name)) for name, placement in placed.items()}


def _dtypes(
    asked: str, content: Mapping[str, Any], weights: ModelFolder | None, names: Iterable[str]
) -> tuple[dict[str, str], str]:
    """The dtype of each tensor, and who says so: the settings, else the weights, else config.json."""
    if asked != "auto":
        return dict.fromkeys(names, STORED_FLOATS[asked]), f"{asked}, by model.dtype"
    if weights is not None:
        dtypes = {name: weights.info(name).dtype for name in names}
        stored_dtypes = {*dtypes.values()}
        listed = ", ".join(dtype for dtype, stored in STORED_FLOATS.items() if stored in stored_dtypes)
        return dtypes, f"{listed}, as the weights are"
    key = next((key for key in _DTYPE_KEYS if content.get(key) is not None), None)
    if key is None:
        return dict.fromkeys(names, "F32"), f"float32, for neither weights nor {CONFIG_NAME} tell"
    dtype = str(content[key]).removeprefix("torch.")
    if dtype not in STORED_FLOATS:
        raise CheckpointError(
            f"{CONFIG_NAME}: {key}={shown(content[key])}: bytes are counted for "
            f"{', '.join(STORED_FLOATS)}; give model.dtype"
        )
    return dict.fromkeys(
        names, STORED_FLOATS[dtype]
    ), f"{dtype}, by {key} of {CONFIG_NAME}; no weights are there"


def _files(specs: Sequence[TensorSpec], parallel: ParallelConfig, copies: Placements) -> dict[str, bytes]:
    """The strategy file of each stage, named after its first rank."""
    size, stages = parallel.model_parallel, parallel.pipeline_stage
    try:
        strategies = stage_strategies(copies, size, stages)
    except CheckpointError as error:
        able = ", ".join(map(str, _writable(specs, stages)))
        hint = f"allowed with layout.dir: parallel.model_parallel={able}; without it there is the table"
        raise ConfigError(f"layout.dir: {fault}; {hint}" for fault in error.faults) from None
    devices = parallel.data_parallel * size
    return {
        strategy_name(stage * devices): strategy_bytes(strategy) for stage, strategy in enumerate(strategies)
    }


def _writable(specs: Sequence[TensorSpec], stages: int) -> Iterator[int]:
    """The values of model_parallel for which strategy files can say what ranks hold."""
    for size in allowed_model_parallel(specs):
        try:
            stage_strategies(placements(specs, size, stages), size, stages)
        except CheckpointError:
            continue
        yield size
