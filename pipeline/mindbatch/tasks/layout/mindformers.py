"""`mindbatch layout model.provider=mindformers`: MindSpore's own layout of a model, and its strategy files.

MindSpore computes the layout of MindFormers' Llama over NPU ranks in simulation, without an NPU.
"""

import json
import math
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.checkpoint.strategy.strategy import TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_in, strategy_name
from mindbatch.config.model_schema import ignored_keys
from mindbatch.io.amounts import shape_text, table
from mindbatch.io.errors import BackendError, ConfigError
from mindbatch.io.screen_text import printable, say
from mindbatch.model_spec.described_folder import described_config
from mindbatch.tasks.layout.parts import (
    FindLayout,
    PlanPart,
    layout_head,
    refuse_other_files,
    sizes_line,
    strategy_lines,
    write_strategies,
)
from mindbatch.tasks.layout.schema import LayoutTaskConfig

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
SEQUENCE_LENGTH = 32
"""Sequence length of the simulated network; no parameter's shape depends on it."""


def llama_options(
    arch: Architecture, data_parallel: int, model_parallel: int, *, qkv_concat: bool = False
) -> dict[str, Any]:
    """Returns the keyword arguments of mindformers' LlamaConfig, except the parallel ones.

    qkv_concat: True makes query, key and value one parameter, and gate and up another.

    Raises:
        ConfigError: lists everything that the network lacks or cannot shard.
    """
    sizes = {
        "attention heads": arch.heads,
        "key/value heads": arch.kv_heads,
        "intermediate_size": arch.intermediate_size,
    }
    errors = [*_shape_errors(arch), *cut_errors(sizes, model_parallel)]
    if errors:
        raise ConfigError(f"model.provider=mindformers: {error}" for error in errors)
    return {
        "batch_size": data_parallel,
        "seq_length": SEQUENCE_LENGTH,
        "hidden_size": arch.hidden_size,
        "num_layers": arch.num_layers,
        "num_heads": arch.heads,
        "n_kv_heads": arch.kv_heads,
        "intermediate_size": arch.intermediate_size,
        "vocab_size": arch.vocab_size,
        "qkv_has_bias": arch.qkv_bias,
        "attn_proj_has_bias": arch.output_bias,
        "qkv_concat": qkv_concat,
        "tie_word_embeddings": arch.tied,
    }


def _shape_errors(arch: Architecture) -> Iterator[str]:
    """Lists what MindFormers' Llama cannot compute: a layout of it would be of another model."""
    name = f"{arch.model_type} model"
    if arch.rotary is None:
        yield f"a {name} is no Llama; allowed are llama, mistral and qwen2"
        return
    if arch.qk_norm:
        yield f"this {name} has norms of queries and keys, which MindFormers' Llama has not"
    if arch.mlp_bias:
        yield f"this {name} has mlp_bias=true, which MindFormers' Llama has not"
    if arch.activation != "silu":
        yield f"this {name} has hidden_act={arch.activation}; MindFormers' Llama has silu"
    if any(arch.windows):
        yield f"this {name} has sliding windows, which MindFormers' Llama has not"
    if arch.heads * arch.head_dim != arch.hidden_size:
        yield (
            f"head_dim={arch.head_dim}: MindFormers' Llama has hidden_size={arch.hidden_size} divided by the "
            f"{arch.heads} heads"
        )


def cut_errors(sizes: Mapping[str, int], model_parallel: int) -> Iterator[str]:
    """Yields a line for each size that is not a multiple of the number of ranks. sizes: by name."""
    for name, size in sizes.items():
        if size % model_parallel:
            yield f"parallel.model_parallel={model_parallel}: must divide {name}, {size}"


@dataclass(frozen=True)
class LayoutJob:
    """A model, as keyword arguments of LlamaConfig, and the numbers of its ranks."""

    model: Mapping[str, Any]
    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    vocab_emb_dp: bool = True

    @property
    def num_ranks(self) -> int:
        return self.data_parallel * self.model_parallel * self.pipeline_stage

    @property
    def leaders(self) -> list[int]:
        """The first rank of each stage, which stands for all ranks of the stage."""
        return [*range(0, self.num_ranks, self.data_parallel * self.model_parallel)]

    @property
    def use_past(self) -> bool:
        """True if it is compiled with its cache: MindFormers 1.9 cannot shard the slots over replicas."""
        return self.data_parallel == 1

    def as_json(self) -> dict[str, Any]:
        """Converts the job to JSON, which the worker reads."""
        derived = {"num_ranks": self.num_ranks, "leaders": self.leaders, "use_past": self.use_past}
        return {**vars(self), "model": {**self.model}, **derived}


StageParameter = Mapping[str, Any]
"""A parameter on the ranks of a stage, as JSON."""


@dataclass(frozen=True)
class InferredLayout:
    """All parameters, stage by stage in MindSpore's order, and the content of the strategy files by name.

    borrowed: stages that use parameters of another stage, such as a tied embedding.
    """

    parameters: tuple[StageParameter, ...]
    strategy_files: Mapping[str, bytes]
    borrowed: tuple[tuple[int, str], ...] = ()


def infer_layouts(
    jobs: Sequence[LayoutJob], timeout: float, *, verbose: bool = False
) -> Iterator[InferredLayout]:
    """Infers the layout of each model by `infer_predict_layout`, in the simulation of Ascend.

    timeout: seconds for all models together.
    verbose: True prints the messages of MindSpore and MindFormers to standard error.

    Raises:
        BackendError: Ascend cannot be simulated here, or the first inference failed.
    """
    from mindbatch.ascend_simulation import layouts
    from mindbatch.ascend_simulation.process import simulate

    order = json.dumps([job.as_json() for job in jobs])
    answers = simulate(layouts.infer_layouts, order, seconds=timeout, verbose=verbose)
    for job in jobs:
        yield _read(job, [next(answers) for _ in job.leaders])
    for _ in answers:
        raise AssertionError("an answer for each leader and no more")


def _read(job: LayoutJob, answers: Sequence[Mapping[str, Any]]) -> InferredLayout:
    """Combines the answers of the leaders: shapes from the compiler, all else from the strategy files."""
    parameters: list[StageParameter] = []
    borrowed: list[tuple[int, str]] = []
    files: dict[str, bytes] = {}
    for stage, (rank, answer) in enumerate(zip(job.leaders, answers, strict=True)):
        content = files[strategy_name(rank)] = b64decode(answer["strategy"])
        layouts = strategy_in(content, Path(strategy_name(rank))).of_stage(stage)
        borrowed += [(stage, name) for name in answer["shapes"] if name not in layouts]
        parameters += [
            parameter_json(stage, shape, layouts[name])
            for name, shape in answer["shapes"].items()
            if name in layouts
        ]
    lost = sorted({name for _, name in borrowed} - {parameter["name"] for parameter in parameters})
    if lost:
        raise BackendError(f"MindSpore's strategy files lack the parameter {lost[0]}")
    return InferredLayout(tuple(parameters), files, tuple(borrowed))


def parameter_json(stage: int, shape: Sequence[int], layout: TensorLayout) -> StageParameter:
    """Describes a parameter as JSON. shape: the shape of the whole parameter."""
    return {
        "name": layout.name,
        "stage": stage,
        "shape": [*shape],
        "local_shape": [*layout.local_shape(tuple(shape))],
        "device_matrix": [*layout.device_matrix],
        "tensor_map": [*layout.tensor_map],
    }


def prepare_layout(config: LayoutTaskConfig) -> FindLayout:
    """Checks the model and layout.dir before MindSpore runs.

    Raises:
        ConfigError, CheckpointError: the model is not supported or cannot be divided over these ranks, or
            layout.dir has other files.
    """
    assert config.model.checkpoint_name_or_path is not None
    home = existing_folder(config.model.checkpoint_name_or_path)
    arch = described_config(home, config.model.type, ignored_keys(config.model)).architecture
    job = _job(config, arch)
    folder = Path(config.layout.dir) if config.layout.dir is not None else None
    if folder is not None:
        refuse_other_files(folder, map(strategy_name, job.leaders))
    return partial(_find_layout, config, arch, job, folder)


def _find_layout(
    config: LayoutTaskConfig, arch: Architecture, job: LayoutJob, folder: Path | None
) -> PlanPart:
    if sys.stderr.isatty():
        say(_WAIT.format(job.num_ranks, config.layout.timeout))
    (layout,) = infer_layouts([job], config.layout.timeout, verbose=config.verbose)
    paths = [] if folder is None else write_strategies(folder, layout.strategy_files, config.layout.replace)
    content = layout_head(arch.model_type, config.parallel, paths) | {"parameters": [*layout.parameters]}
    page = layout_page(job, content, layout)
    if config.compiles and job.vocab_emb_dp and job.model_parallel > 1:
        page += f"\n\n{_NOT_AS_COMPILED}"
    return PlanPart(content, page)


def _job(config: LayoutTaskConfig, arch: Architecture) -> LayoutJob:
    parallel = config.parallel
    if parallel.pipeline_stage > arch.num_layers:
        raise ConfigError(
            f"parallel.pipeline_stage={parallel.pipeline_stage}: must be at most {arch.num_layers}, "
            "the model's layers"
        )
    sizes, layout = (parallel.data_parallel, parallel.model_parallel), config.layout
    options = llama_options(arch, *sizes, qkv_concat=layout.qkv_concat)
    vocab_emb_dp = not config.compiles if layout.vocab_emb_dp is None else layout.vocab_emb_dp
    return LayoutJob(options, *sizes, parallel.pipeline_stage, vocab_emb_dp)


def layout_page(job: LayoutJob, content: Mapping[str, Any], layout: InferredLayout) -> str:
    """Makes the page: sharded parameters, sums by rank, and the strategy files. content: the JSON."""
    head = [
        f"MindSpore's layout of MindFormers' Llama as {content['model_type']}",
        sizes_line(content),
        _WITH_CACHE if job.use_past else _WITHOUT_CACHE,
    ]
    sums = [*_sums(layout.parameters, job.pipeline_stage), *_borrowed(layout)]
    blocks = [head, _table(layout.parameters), sums, strategy_lines(content["strategy_files"])]
    return "\n\n".join("\n".join(block) for block in blocks)


def _table(parameters: Sequence[StageParameter]) -> list[str]:
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


def _cut(parameter: StageParameter) -> str:
    sizes = zip(parameter["shape"], parameter["local_shape"], strict=True)
    cuts = [
        f"dimension {index} into {whole // part}"
        for index, (whole, part) in enumerate(sizes)
        if whole != part
    ]
    return ", ".join(cuts) or "whole"


def _sums(parameters: Sequence[StageParameter], stages: int) -> Iterator[str]:
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
