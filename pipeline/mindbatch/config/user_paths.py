"""The paths in a configuration: made definite, and checked before anything is loaded."""

from typing import Any

from mindbatch.config.compare_schema import COMPARISON_FILES
from mindbatch.config.path_faults import (
    Check,
    any_path,
    checkpoint_fault,
    folder_fault,
    input_file_fault,
    model_folder_fault,
    new_files_fault,
    new_folder_fault,
    output_file_fault,
    prompts_file_fault,
    rows_fault,
    run_folder_fault,
    settled,
    tokenizer_folder_fault,
)
from mindbatch.config.paths import SAVED_BESIDE, STANDARD_INPUT
from mindbatch.config.schema import (
    BatchConfig,
    CompareConfig,
    DataConfig,
    DiffConfig,
    GenerateConfig,
    InspectConfig,
    ModelConfig,
    ModelTaskConfig,
    PlanConfig,
    PromptTaskConfig,
    RankTableConfig,
    ReplayConfig,
    ReshardConfig,
    RunsConfig,
    TaskConfig,
)

NO_MODEL = "model.checkpoint_name_or_path: must be given: the folder of a model (model=tiny_gpt2 is shipped)"
NO_DATA = "data.path: must be given: a file, folder or pattern of the rows, or - for standard input"
OR_RANKS = "; parallel.model_parallel=2, for one, plans what ranks hold, which needs no data"
NO_RUN_FOLDER = "output.dir: must be given: the folder of the run, new or to be resumed"
NO_CHECKPOINT = "path: must be given: mindbatch inspect PATH, a file or folder"
NO_SOURCE = "source: must be given: a model folder, a file of tensors, or a folder of rank folders"
NO_TARGET = "target.dir: must be given: the folder to make"
NO_RUNS = "{}: must be given: mindbatch diff FIRST SECOND, the folders of two runs"


def settle_paths(config: TaskConfig) -> list[str]:
    """Replaces `shipped:` and ~ in the paths of `config` by what they mean; returns their faults."""
    faults = settle_model_paths(config.model) if isinstance(config, ModelTaskConfig) else []
    match config:
        case GenerateConfig():
            _settle_prompts(config, faults)
            fault_of = output_file_fault if config.output.overwrite else new_files_fault(SAVED_BESIDE)
            config.output.file = settled("output.file", config.output.file, fault_of, faults)
        case CompareConfig():
            _settle_prompts(config, faults)
            fault_of = run_folder_fault if config.output.overwrite else new_folder_fault(*COMPARISON_FILES)
            config.output.dir = settled("output.dir", config.output.dir, fault_of, faults)
        case PlanConfig():
            _settle_plan(config, faults)
        case BatchConfig():
            _settle_data(config.data, faults)
            _settle_run_folder(config, faults)
        case DiffConfig():
            _settle_diff(config, faults)
        case RunsConfig():
            config.folder = settled("folder", config.folder, folder_fault, faults) or config.folder
        case ReshardConfig():
            _settle_reshard(config, faults)
        case InspectConfig():
            _settle_inspected(config, faults)
        case RankTableConfig():
            _settle_rank_tables(config, faults)
    return faults


def settle_model_paths(model: ModelConfig) -> list[str]:
    """The same for the paths of a model."""
    faults = [] if model.checkpoint_name_or_path is not None else [NO_MODEL]
    model.checkpoint_name_or_path = settled(
        "model.checkpoint_name_or_path",
        model.checkpoint_name_or_path,
        model_folder_fault,
        faults,
        is_model=True,
    )
    model.tokenizer = settled(
        "model.tokenizer", model.tokenizer, tokenizer_folder_fault, faults, is_model=True
    )
    model.assistant = settled("model.assistant", model.assistant, model_folder_fault, faults, is_model=True)
    return faults


def _settle_prompts(config: PromptTaskConfig, faults: list[str]) -> None:
    if config.prompts_file != STANDARD_INPUT:
        config.prompts_file = settled("prompts_file", config.prompts_file, prompts_file_fault, faults)
    config.tools = _settled_tools("tools", config.tools, faults)


def _settled_tools(key: str, tools: Any, faults: list[str]) -> Any:
    """Tools that are given as a text are the path of a file."""
    if not isinstance(tools, str):
        return tools
    return settled(key, tools, input_file_fault("a JSON list of tools"), faults)


def _settle_data(data: DataConfig, faults: list[str], no_data: str = NO_DATA) -> None:
    if data.path is None:
        faults.append(no_data)
    if data.path != STANDARD_INPUT:
        data.path = settled("data.path", data.path, rows_fault, faults)
    fault_of = input_file_fault("the template")
    data.template_file = settled("data.template_file", data.template_file, fault_of, faults)
    data.tools = _settled_tools("data.tools", data.tools, faults)
    if isinstance(data.filter_keys, str):
        fault_of = input_file_fault("a key on each line")
        data.filter_keys = settled("data.filter_keys", data.filter_keys, fault_of, faults)


def _settle_plan(config: PlanConfig, faults: list[str]) -> None:
    if config.needs_data:
        _settle_data(config.data, faults, NO_DATA + OR_RANKS)
        _settle_run_folder(config, faults)
    config.layout.dir = settled("layout.dir", config.layout.dir, run_folder_fault, faults)


def _settle_run_folder(config: BatchConfig, faults: list[str]) -> None:
    fault_of: Check = run_folder_fault
    match config:
        case PlanConfig():  # writes nothing
            fault_of = any_path
        case ReplayConfig():  # only reads
            fault_of = folder_fault
    if config.output.dir is None and not isinstance(config, PlanConfig):
        faults.append(NO_RUN_FOLDER)
    config.output.dir = settled("output.dir", config.output.dir, fault_of, faults)


def _settle_diff(config: DiffConfig, faults: list[str]) -> None:
    missing = [name for name in DiffConfig.positional if getattr(config, name) is None]
    if missing:
        faults.append(NO_RUNS.format(", ".join(missing)))
    config.first = settled("first", config.first, folder_fault, faults)
    config.second = settled("second", config.second, folder_fault, faults)


def _settle_inspected(config: InspectConfig, faults: list[str]) -> None:
    if config.path is None:
        faults.append(NO_CHECKPOINT)
    config.path = settled("path", config.path, checkpoint_fault, faults, is_model=True)


def _settle_reshard(config: ReshardConfig, faults: list[str]) -> None:
    if config.source is None:
        faults.append(NO_SOURCE)
    if config.target.dir is None and not config.dry_run:
        faults.append(NO_TARGET)
    config.source = settled("source", config.source, checkpoint_fault, faults, is_model=True)
    config.source_config = settled(
        "source_config", config.source_config, model_folder_fault, faults, is_model=True
    )
    config.source_strategy = settled("source_strategy", config.source_strategy, checkpoint_fault, faults)
    config.lora.merge = settled("lora.merge", config.lora.merge, folder_fault, faults)
    fault_of = any_path if config.dry_run else run_folder_fault
    config.target.dir = settled("target.dir", config.target.dir, fault_of, faults)


def _settle_rank_tables(config: RankTableConfig, faults: list[str]) -> None:
    if isinstance(config.files, list | tuple):
        fault_of = input_file_fault("a rank table")
        config.files = tuple(settled("files", str(file), fault_of, faults) for file in config.files)
    config.output.file = settled("output.file", config.output.file, output_file_fault, faults)
    if config.hccn_tool.startswith("~"):  # else it may be a name on the PATH
        config.hccn_tool = settled("hccn_tool", config.hccn_tool, any_path, faults) or config.hccn_tool
    config.hccn_conf = settled("hccn_conf", config.hccn_conf, any_path, faults) or config.hccn_conf
