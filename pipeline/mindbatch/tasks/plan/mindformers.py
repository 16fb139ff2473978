"""`mindbatch plan model.provider=mindformers`: MindSpore's own layout of a model, and its strategy files."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.checkpoint.strategy.strategy_file import strategy_name
from mindbatch.config.model_schema import ignored_keys
from mindbatch.io.amounts import shape_text, table
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import printable, say
from mindbatch.models.architecture import Architecture
from mindbatch.models.described_folder import described_config
from mindbatch.tasks.plan.layout import (
    FindLayout,
    PlanPart,
    layout_head,
    refuse_other_files,
    sizes_line,
    strategy_lines,
    write_strategies,
)
from mindbatch.tasks.plan.mindformers_layout import (
    InferredLayout,
    LayoutJob,
    Parameter,
    infer_layouts,
    llama_options,
)
from mindbatch.tasks.plan.schema import PlanConfig

_WITH_CACHE = "compiled for Ascend, simulated, in bfloat16 with flash attention and a paged cache"
_WITHOUT_CACHE = (
    "compiled for Ascend, simulated, in bfloat16 with flash attention and without a cache: MindFormers "
    "cannot cut the slots of a paged one over data_parallel"
)
_NOT_AS_COMPILED = (
    "note: layout.vocab_emb_dp=true: embedding and head are whole in these files, and cut in what is "
    "compiled and in its memory"
)
_WAIT = "MindSpore works out the layout of {} ranks, which takes 10 s to some minutes ({} s at most)"


def prepare_layout(config: PlanConfig) -> FindLayout:
    """Checks all that can be checked beforehand.

    Raises:
        ConfigError, CheckpointError: the model cannot be described or cut so, or layout.dir holds others.
    """
    assert config.model.checkpoint_name_or_path is not None
    home = existing_folder(config.model.checkpoint_name_or_path)
    arch = described_config(home, config.model.type, ignored_keys(config.model)).architecture
    job = _job(config, arch)
    folder = Path(config.layout.dir) if config.layout.dir is not None else None
    if folder is not None:
        refuse_other_files(folder, map(strategy_name, job.leaders))
    return partial(_find_layout, config, arch, job, folder)


def _find_layout(config: PlanConfig, arch: Architecture, job: LayoutJob, folder: Path | None) -> PlanPart:
    if sys.stderr.isatty():
        say(_WAIT.format(job.num_ranks, config.layout.timeout))
    (layout,) = infer_layouts([job], config.layout.timeout, verbose=config.runtime.verbose)
    paths = [] if folder is None else write_strategies(folder, layout.strategy_files, config.layout.replace)
    content = layout_head(arch.model_type, config.parallel, paths) | {"parameters": [*layout.parameters]}
    note = f"\n\n{_NOT_AS_COMPILED}" if config.compile and job.vocab_emb_dp and job.model_parallel > 1 else ""
    return PlanPart(content, layout_page(job, content, layout) + note)


def _job(config: PlanConfig, arch: Architecture) -> LayoutJob:
    parallel = config.parallel
    if parallel.pipeline_stage > arch.num_layers:
        raise ConfigError(
            f"parallel.pipeline_stage={parallel.pipeline_stage}: must be at most {arch.num_layers}, "
            "the model's layers"
        )
    sizes, layout = (parallel.data_parallel, parallel.model_parallel), config.layout
    options = llama_options(arch, *sizes, qkv_concat=layout.qkv_concat)
    vocab_emb_dp = not config.compile if layout.vocab_emb_dp is None else layout.vocab_emb_dp
    return LayoutJob(options, *sizes, parallel.pipeline_stage, vocab_emb_dp)


def layout_page(job: LayoutJob, content: Mapping[str, Any], layout: InferredLayout) -> str:
    """Every parameter with its cut, what each rank holds, and where the strategy files are.

    content: the JSON.
    """
    head = [
        f"MindSpore's layout of MindFormers' Llama as {content['model_type']}",
        sizes_line(content),
        _WITH_CACHE if job.use_past else _WITHOUT_CACHE,
    ]
    sums = [*_sums(layout.parameters, job.pipeline_stage), *_borrowed(layout)]
    blocks = [head, _table(layout.parameters), sums, strategy_lines(content["strategy_files"])]
    return "\n\n".join("\n".join(block) for block in blocks)


def _table(parameters: Sequence[Parameter]) -> list[str]:
    rows = [["stage", "parameter", "shape", "on a rank", "cut"]]
    rows += [
        [
            str(parameter["stage"]),
            printable(parameter["name"]),
            shape_text(parameter["shape"]),
            shape_text(parameter["local_shape"]),
            _cut(parameter),
        ]
        for parameter in parameters
    ]
    return table(rows, right=(0,))


def _cut(parameter: Parameter) -> str:
    sizes = zip(parameter["shape"], parameter["local_shape"], strict=True)
    cuts = [
        f"dimension {index} into {whole // part}"
        for index, (whole, part) in enumerate(sizes)
        if whole != part
    ]
    return ", ".join(cuts) or "whole"


def _sums(parameters: Sequence[Parameter], stages: int) -> Iterator[str]:
    for stage in range(stages):
        own = [parameter for parameter in parameters if parameter["stage"] == stage]
        here, whole = (
            sum(math.prod(parameter[key]) for parameter in own) for key in ("local_shape", "shape")
        )
        yield f"stage {stage}: {len(own)} parameters; a rank holds {here:,} of {whole:,} elements"


def _borrowed(layout: InferredLayout) -> Iterator[str]:
    for stage, name in layout.borrowed:
        yield (
            f"note: stage {stage} uses {printable(name)} too, which MindSpore's files have in another stage "
            "only"
        )
