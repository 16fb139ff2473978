"""What `mindbatch plan` may be given when it works out a layout over ranks, with MindSpore or without."""

from collections.abc import Iterator

from mindbatch.config.keys import SchemaKeys, value_at
from mindbatch.config.schema import PlanConfig
from mindbatch.config.settings import shown

MOST_PROCESSES = 64
MOST_RANKS = 8192
_USED = {
    "model.checkpoint_name_or_path",
    "model.ignore_config_keys",
    "model.provider",
    "model.type",
    "parallel.data_parallel",
    "parallel.model_parallel",
    "parallel.pipeline_stage",
    "report",
    "runtime.verbose",
}
_USED_WITHOUT_MINDSPORE = _USED | {"model.dtype", "layout.dir", "layout.replace"}


def layout_faults(config: PlanConfig, keys: SchemaKeys) -> Iterator[str]:
    """Every fault but those of single values and of paths; an option that would be ignored is one."""
    for name, key in keys.keys.items():
        value = value_at(config, name)
        if value == (list(key.default) if isinstance(key.default, tuple) else key.default):  # YAML has lists
            continue
        reason = _without_effect(config, name)
        if reason:
            yield f"{name}={shown(value)}: {reason}"
    yield from _rank_faults(config)
    if config.layout.replace and config.layout.dir is None:
        yield "layout.replace=true: has no effect without layout.dir"


def _without_effect(config: PlanConfig, name: str) -> str | None:
    """Why a key would be ignored, if it would be."""
    if config.asks_mindspore:
        is_used = name in _USED or name.startswith("layout.")
        return None if is_used else "has no effect with model.provider=mindformers; remove it"
    if name.startswith("layout."):
        return None if name in _USED_WITHOUT_MINDSPORE else "only with model.provider=mindformers"
    if config.needs_data or name in _USED_WITHOUT_MINDSPORE:
        return None
    return "has no effect on what ranks hold; give data.path too, or remove it"


def _rank_faults(config: PlanConfig) -> Iterator[str]:
    parallel = config.parallel
    ranks = parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage
    most = MOST_PROCESSES if config.asks_mindspore else MOST_RANKS
    if ranks > most:
        process = ", a process each" if config.asks_mindspore else ""
        yield (
            f"parallel: {ranks} ranks{process}; at most {most}. Copies of the model "
            "(parallel.data_parallel) hold the same slices: fewer of them say the same"
        )
