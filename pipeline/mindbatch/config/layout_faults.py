"""What `mindbatch plan` may be given when it works out MindSpore's layout of a MindFormers model."""

from collections.abc import Iterator

from mindbatch.config.keys import SchemaKeys, value_at
from mindbatch.config.schema import PlanConfig
from mindbatch.config.settings import shown

MOST_RANKS = 64
_USED = {
    "model.checkpoint_name_or_path",
    "model.provider",
    "model.type",
    "parallel.data_parallel",
    "parallel.model_parallel",
    "parallel.pipeline_stage",
    "report",
    "runtime.verbose",
}


def layout_faults(config: PlanConfig, keys: SchemaKeys) -> Iterator[str]:
    """Every fault but those of single values and of paths; an option that would be ignored is one."""
    is_layout = config.plans_layout
    for name, key in keys.keys.items():
        value = value_at(config, name)
        if value == (list(key.default) if isinstance(key.default, tuple) else key.default):  # YAML has lists
            continue
        is_about_it = name.startswith("layout.")
        if is_about_it and not is_layout:
            yield f"{name}={shown(value)}: only with model.provider=mindformers"
        elif is_layout and not is_about_it and name not in _USED:
            yield f"{name}={shown(value)}: has no effect with model.provider=mindformers; remove it"
    if not is_layout:
        return
    parallel = config.parallel
    ranks = parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage
    if ranks > MOST_RANKS:
        yield (
            f"parallel: {ranks} ranks, a process each; at most {MOST_RANKS}. Copies of the model "
            "(parallel.data_parallel) hold the same slices: fewer of them say the same"
        )
    if config.layout.replace and config.layout.dir is None:
        yield "layout.replace=true: has no effect without layout.dir"
