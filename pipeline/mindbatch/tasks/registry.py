"""The tasks of the command line: what each does, examples of it, its keys and its code; and the help pages.

A task is a package of its own, or a module: the schema of its keys, with what they may be together, and
`run(config)`. It is imported when it is asked for; the schema loads none of the code.
"""

import json
from collections.abc import Mapping

from mindbatch.config.options import OptionFiles
from mindbatch.config.schema import Key, SchemaKeys, Task, TaskConfig, schema_keys
from mindbatch.io.error_lines import as_typed

_TASKS = (
    Task(
        name="generate",
        summary="generate text for prompts, a file of prompts, standard input or a chat",
        keys="mindbatch.tasks.generate.schema:GenerateConfig",
        module="mindbatch.tasks.generate.task",
        examples=(
            """mindbatch generate model=tiny_gpt2 prompts='["An increasing sequence: one,"]'""",
            """mindbatch generate model=tiny_gpt2 prompts='["An increasing sequence: one,"]' stream=true""",
            "mindbatch generate model.checkpoint_name_or_path=FOLDER prompts_file=FILE output.format=json",
            "mindbatch generate model.checkpoint_name_or_path=FOLDER decoding=top_p interactive=true",
        ),
    ),
    Task(
        name="compare",
        summary="run the same prompts under several decoding strategies and compare what comes of it",
        keys="mindbatch.tasks.evaluate.compare_schema:CompareConfig",
        module="mindbatch.tasks.evaluate.compare",
        examples=(
            """mindbatch compare model=tiny_gpt2 prompts='["An increasing sequence: one,"]' """
            "output.dir=compared",
            "mindbatch compare model.checkpoint_name_or_path=FOLDER prompts_file=FILE "
            "decoding='[greedy,beam4,top_p]'",
        ),
    ),
    Task(
        name="evaluate",
        summary="score models, adapters and decodings on a task: answers, likelihoods, choices",
        keys="mindbatch.tasks.evaluate.schema:EvaluateConfig",
        module="mindbatch.tasks.evaluate.task",
        examples=(
            "mindbatch evaluate model=tiny_gpt2 data.path=questions.jsonl metrics='[exact_match,perplexity]' "
            "lora.adapters='{base: null, sft: path/to/adapter}' report=report.html",
            "mindbatch evaluate model.checkpoint_name_or_path=FOLDER task=gsm8k data.path=gsm8k_test.jsonl",
        ),
    ),
    Task(
        name="batch",
        summary="run a whole dataset; the same command again resumes, and nothing is lost or done twice",
        keys="mindbatch.run.batch_config:BatchTaskConfig",
        module="mindbatch.tasks.batch",
        examples=(
            "mindbatch batch model=tiny_gpt2 data.path=questions.jsonl output.dir=runs/a",
            "mindbatch batch model=tiny_gpt2 data=gsm8k data.path=gsm8k_test.jsonl output.dir=runs/b",
            "mindbatch batch model.checkpoint_name_or_path=FOLDER data.path=requests.jsonl data=openai "
            "output.dir=runs/c",
        ),
    ),
    Task(
        name="serve",
        summary="serve the model over HTTP with OpenAI's API; a batch there is a run: killed, it resumes",
        keys="mindbatch.server.schema:ServeConfig",
        module="mindbatch.server.serving",
        examples=(
            "mindbatch serve model=tiny_gpt2 server.batches_dir=batches",
            "mindbatch serve model.checkpoint_name_or_path=FOLDER lora.adapters='{sft: ADAPTER}' "
            "server.api_key='${oc.env:KEY}' server.host=0.0.0.0",
        ),
    ),
    Task(
        name="plan",
        summary="say what a batch would need: rows, tokens, memory, time; or what ranks hold",
        keys="mindbatch.tasks.plan.schema:PlanConfig",
        module="mindbatch.tasks.plan.task",
        examples=(
            "mindbatch plan model=tiny_gpt2 data.path=questions.jsonl calibrate=true",
            "mindbatch plan model.checkpoint_name_or_path=FOLDER parallel.model_parallel=8 layout.dir=DIR",
            "mindbatch plan model.provider=mindformers model.checkpoint_name_or_path=FOLDER "
            "parallel.model_parallel=8 layout.dir=strategy",
            "mindbatch plan model.checkpoint_name_or_path=FOLDER parallel.model_parallel=8 runtime=ascend "
            "compile=true",
        ),
    ),
    Task(
        name="retry",
        summary="run the rows of a batch again that failed, with its own settings: batch retry=true",
        keys="mindbatch.run.batch_config:BatchTaskConfig",
        module="mindbatch.tasks.batch",
        examples=("mindbatch retry output.dir=runs/a",),
        implied=("retry=true",),
        configuration="batch",
    ),
    Task(
        name="replay",
        summary="run one row of a batch again and compare it with what it gave",
        keys="mindbatch.run.batch_config:ReplayConfig",
        module="mindbatch.tasks.replay",
        examples=("mindbatch replay output.dir=runs/a key=17",),
    ),
    Task(
        name="diff",
        summary="compare two batches row by row",
        keys="mindbatch.tasks.diff:DiffConfig",
        module="mindbatch.tasks.diff",
        examples=("mindbatch diff runs/a runs/b",),
    ),
    Task(
        name="runs",
        summary="list the batches below a folder: their state, rows, speed and command",
        keys="mindbatch.tasks.runs:RunsConfig",
        module="mindbatch.tasks.runs",
        examples=("mindbatch runs runs", "mindbatch runs runs format=json"),
    ),
    Task(
        name="reshard",
        summary="cut a checkpoint for other numbers of ranks, merge it, or change its format or dtype",
        keys="mindbatch.tasks.reshard.schema:ReshardConfig",
        module="mindbatch.tasks.reshard.task",
        examples=(
            "mindbatch reshard source=FOLDER target.dir=cut target.model_parallel=8",
            "mindbatch reshard source=cut target.dir=whole target.dtype=bfloat16 verify=true",
            "mindbatch reshard source=cut target.dir=other target.model_parallel=4 target.format=ckpt",
            "mindbatch reshard source=FOLDER target.dir=full target.names=mindformers target.format=ckpt",
            "mindbatch reshard source=FOLDER target.dir=merged lora.merge=ADAPTER",
        ),
    ),
    Task(
        name="inspect",
        summary="show what is in a checkpoint or a strategy file: tensors, shapes, bytes, ranks",
        keys="mindbatch.tasks.inspect:InspectConfig",
        module="mindbatch.tasks.inspect",
        examples=(
            "mindbatch inspect FOLDER",
            "mindbatch inspect model.ckpt filter='*.weight' digests=true format=json",
            "mindbatch inspect strategy/ckpt_strategy_rank_0.ckpt",
        ),
    ),
    Task(
        name="rank-table",
        summary="write the rank table of one server or several, check tables, or merge them",
        keys="mindbatch.tasks.rank_table:RankTableConfig",
        module="mindbatch.tasks.rank_table",
        examples=(
            "mindbatch rank-table devices='[0,8)'",
            "mindbatch rank-table merge server1.json server2.json output.file=cluster.json",
            "mindbatch rank-table check cluster.json num_ranks=16",
        ),
    ),
    Task(
        name="doctor",
        summary="show what was found: versions, devices, kernels, compiler, memory",
        keys="mindbatch.tasks.doctor:DoctorConfig",
        module="mindbatch.tasks.doctor",
        examples=("mindbatch doctor", "mindbatch doctor format=json"),
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}


KNOWN_SECTIONS = frozenset({"model", "decoding", "parallel", "launch", "runtime", "data", "task"})
"""The groups that are sections of some task."""

USAGE = "usage: mindbatch TASK [FLAGS] [KEY=VALUE ...]"


def overview(flags: Mapping[str, str]) -> str:
    """The page of `mindbatch --help`; `flags` are those of every task, with their meanings."""
    width = max(map(len, TASKS))
    tasks = [f"  {name:<{width}}  {task.summary}" for name, task in TASKS.items()]
    examples = [f"  {task.examples[0]}" for task in TASKS.values()]
    closing = ["Keys of a task, and more examples: mindbatch TASK --help"]
    return _page([[USAGE], ["Tasks", *tasks], ["Examples", *examples], _flag_block(flags), closing])


def task_page(task: Task, options: OptionFiles, flags: Mapping[str, str]) -> str:
    keys = schema_keys(task.schema)
    words = [_word(keys.keys[name]) for name in task.schema.positional]
    if rest := task.schema.positional_rest:
        words.append(f"[{rest.upper()} ...]")
    usage = USAGE.replace("TASK", " ".join([task.name, *words]))
    examples = ["Examples", *(f"  {example}" for example in task.examples)]
    sections = [_section(name, keys, options, task.schema) for name in ("", *keys.sections)]
    sections.append(_further_groups(keys, options))
    return _page([[usage, "", task.summary], examples, *filter(None, sections), _flag_block(flags)])


def _further_groups(keys: SchemaKeys, options: OptionFiles) -> list[str]:
    """The groups that are no section: their options set keys of several, where the task has those."""
    groups = sorted(group for group in options.groups if group.partition("/")[0] not in KNOWN_SECTIONS)
    lines = [
        f"  +{group}=NAME: {', '.join(options.names(group))}" for group in groups if options.names(group)
    ]
    return ["Options for several groups at once", *lines] if lines and keys.sections else []


def _word(key: Key) -> str:
    """A word that stands for a key; in brackets when it may be left out."""
    return key.name.upper() if key.default is None else f"[{key.name.upper()}]"


def _section(name: str, schema: SchemaKeys, options: OptionFiles, task: type[TaskConfig]) -> list[str]:
    keys = [schema.keys[key] for key in schema.of_section(name)]
    if not keys:
        return []
    title = f"{name}: {schema.sections[name]}" if name else "Keys"
    lines = [title]
    if name in options.groups and name == task.listed_group:
        lines.append(f"  {name}='[NAME,...]' lists some of these: {', '.join(options.names(name))}")
        lines.append(
            f"      {name}='[{','.join(task.listed_options)}]' if none are given; the keys go for all"
        )
    elif name in options.groups:
        lines.append(f"  {name}=NAME chooses values for the group: {', '.join(options.names(name))}")
    return lines + [line for key in keys for line in _key_lines(key)]


def _key_lines(key: Key) -> list[str]:
    """Formats a key's values and its meaning, below the topic where one begins."""
    heading = ["", f"  {key.topic}"] if key.topic else []
    return [*heading, f"  {key.name}={_default(key.default)}  ({key.in_help})", f"      {key.meaning}"]


def _default(value: object) -> str:
    """A default as it is typed; a text whose white space would not be seen is in quotes."""
    text = as_typed(value)
    return text if not isinstance(value, str) or text == value != "" else json.dumps(value)


def _flag_block(flags: Mapping[str, str]) -> list[str]:
    width = max(map(len, flags))
    return ["Flags", *(f"  {flag:<{width}}  {meaning}" for flag, meaning in flags.items())]


def _page(blocks: list[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks)
