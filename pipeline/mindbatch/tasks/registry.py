"""The tasks of the command line: what each does, examples of it, its keys and its code.

A task is a package of its own, or a module: the schema of its keys, with what they may be together, and
`run(config)`. It is imported when it is asked for; the schema loads none of the code.
"""

from mindbatch.config.schema import Task

_MODEL = "model.checkpoint_name_or_path"

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
        first=(
            _MODEL,
            "prompts",
            "prompts_file",
            "chat",
            "decoding",
            "decoding.max_new_tokens",
            "decoding.temperature",
            "decoding.seed",
            "stream",
            "interactive",
            "output.file",
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
        first=(
            _MODEL,
            "prompts",
            "prompts_file",
            "chat",
            "decoding",
            "decoding.max_new_tokens",
            "decoding.seed",
            "output.dir",
            "output.format",
            "limit",
            "timings",
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
        first=(
            _MODEL,
            "checkpoints",
            "lora.adapters",
            "data.path",
            "data.limit",
            "task",
            "task.few_shot",
            "metrics",
            "baseline",
            "decoding",
            "output.dir",
            "report",
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
        first=(
            _MODEL,
            "data.path",
            "data.key_column",
            "data.prompt_column",
            "data.template",
            "data.chat",
            "decoding",
            "decoding.max_new_tokens",
            "decoding.temperature",
            "output.dir",
            "output.format",
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
        first=(
            _MODEL,
            "model.seq_length",
            "lora.adapters",
            "decoding.max_new_tokens",
            "runtime.cache_memory",
            "server.host",
            "server.port",
            "server.api_key",
            "server.model_name",
            "server.batches_dir",
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
        first=(
            _MODEL,
            "data.path",
            "decoding.max_new_tokens",
            "parallel.data_parallel",
            "parallel.model_parallel",
            "runtime",
            "rate",
            "calibrate",
            "compile",
            "report",
            "layout.dir",
        ),
    ),
    Task(
        name="retry",
        summary="run the rows of a batch again that failed, with its own settings: batch retry=true",
        keys="mindbatch.run.batch_config:RetryConfig",
        module="mindbatch.tasks.batch",
        examples=("mindbatch retry runs/a",),
        implied=("retry=true",),
        configuration="batch",
        first=(
            "output.dir",
            "data.max_errors",
            "progress",
        ),
    ),
    Task(
        name="replay",
        summary="run one row of a batch again and compare it with what it gave",
        keys="mindbatch.run.batch_config:ReplayConfig",
        module="mindbatch.tasks.replay",
        examples=("mindbatch replay runs/a key=17",),
        first=(
            "output.dir",
            "key",
        ),
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
        first=(
            "source",
            "target.dir",
            "target.model_parallel",
            "target.pipeline_stage",
            "target.format",
            "target.dtype",
            "target.names",
            "lora.merge",
            "verify",
            "dry_run",
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
        first=(
            "action",
            "files",
            "devices",
            "visible_devices",
            "server_id",
            "servers",
            "version",
            "num_ranks",
            "output.file",
            "output.replace",
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
