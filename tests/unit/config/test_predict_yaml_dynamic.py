"""YAMLs of MindFormers 2.1 for dynamic graphs: each key is used, without effect for a reason, or refused."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.predict_yaml.apply import Applied, apply_table
from mindbatch.config.predict_yaml.dynamic import TEMPLATE
from mindbatch.config.schema import TaskConfig, schema_keys
from mindbatch.dataset.records import ColumnError, Record
from mindbatch.dataset.template import DataTemplate, TemplateSource
from mindbatch.io.errors import PromptError
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.layout.schema import LayoutTaskConfig
from predict_yamls import DYNAMIC, QWEN3
from task_configs import config_of, faults_of_task

LONG = "one, " * 2000 + "two"
RECORDS = '{"instruction": "Add", "input": "1 + 2"}\n{"instruction": "Go"}\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the YAML, its model without weights, and its rows."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(QWEN3))
    (tmp_path / "rows.jsonl").write_text(RECORDS)
    (tmp_path / "lines.txt").write_text("one,\ntwo,\n")
    (tmp_path / "p.yaml").write_text(DYNAMIC.replace("FOLDER", "model"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def applied(
    text: str = "", task: type[TaskConfig] = BatchConfig, overrides: dict[str, object] | None = None
) -> Applied:
    if text:
        Path("p.yaml").write_text(text)
    return apply_table(Path("p.yaml"), schema_keys(task), overrides)


def values(result: Applied) -> dict[str, object]:
    assert result.errors == []
    return {key: setting.value for key, setting in result.settings.items()}


def reasons(result: Applied) -> dict[str, str]:
    return {key: why for why, keys in result.unused.items() for key in keys}


def with_input(value: str) -> str:
    return f"inference:\n  input_data: {value}\n"


def test_a_yaml_of_dynamic_graphs(here: Path) -> None:
    result = applied()
    assert values(result) == {
        "model.provider": "native",
        "model.checkpoint_name_or_path": "model",
        "model.batch_size": 3,
        "model.seq_length": 64,
        "model.dtype": "float32",
        "decoding.max_new_tokens": 12,
        "decoding.seed": 7,
        "data.path": "rows.jsonl",
        "data.template": TEMPLATE,
        "parallel.model_parallel": 2,
        "parallel.pipeline_stage": 1,
        "runtime.device_target": "CPU",
    }
    why = reasons(result)
    assert why["inference.output"] == "output.dir or output.file is for results"
    assert why["model.compute_dtype"] == "on a CPU a YAML's half types are not used; set model.dtype"
    assert why["optimizer"] == why["recompute_comm"] == why["training.steps"] == "of training"
    assert why["model.num_nextn_predict_layers"] == why["model.moe_aux_loss_coeff"] == "of training"
    assert why["parallelism.sequence_parallel"] == "each layer type has one way of sharding"
    assert not {"model.hidden_size", "model.model_type", "context.mode"} & why.keys(), "config.json agrees"


def test_the_section_inference_has_mindformers_defaults(here: Path) -> None:
    for text in ("inference: {}", "inference:"):
        assert values(applied(text)) == {
            "model.provider": "native",
            "decoding.max_new_tokens": 50,
            "model.batch_size": 8,
        }
    assert values(applied("checkpoint: {load_path: model}")) == {
        "model.provider": "native",
        "model.checkpoint_name_or_path": "model",
    }
    kept = values(applied("inference: {}", overrides={"decoding.max_length": 9, "model.batch_size": 2}))
    assert kept == {"model.provider": "native"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run_mode: train\ntraining: {}", "run_mode=train: only predict YAMLs are supported"),
        ("inference: {max_new_token: 3}", "inference.max_new_token=3: unknown key; did you mean"),
        ("inference: {temperature: 0.7}", "inference.temperature=0.7: unknown key; decoding parameters are"),
        ("inference: 3", "inference=3: must be a section of keys"),
        ("parallelism: {expert_parallel: 8}", "parallelism.expert_parallel=8: experts are sharded by"),
        ("parallelism: {context_parallel: 2}", "parallelism.context_parallel=2: sequences are not sharded"),
        ("parallelism: {tensor_paralel: 2}", "parallelism.tensor_paralel=2: unknown key; did you mean"),
        (
            "checkpoint: {load_pth: x}",
            "checkpoint.load_pth=x: unknown key; did you mean checkpoint.load_path?",
        ),
        ("checkpoint: {load_path: a.ckpt}", "checkpoint.load_path=a.ckpt: convert weights"),
        ("checkpoint: {load_path: adapter}", "checkpoint.load_path=adapter: is an adapter without its base"),
        ("register_path: mine\ntraining: {}", "register_path=mine: code named in a file is never run"),
        ("training: {}\nmodel: {auto_register: a.B}", "model.auto_register=a.B: code named in a file"),
        (
            "training: {}\nmodel: {experimental_attention_variant: dsa}",
            "model.experimental_attention_variant=dsa: no supported model has it",
        ),
        ("inference: {input_data: [1]}", "inference.input_data=[1]: this task reads a file: write the"),
        ("inference: {input_data: row.jsonl}", "inference.input_data=row.jsonl: no such file"),
        ("inference: {input_data: Hello}", "inference.input_data=Hello: this task reads a file: write the"),
    ],
)
def test_what_cannot_be_done_is_refused(line: str, expected: str, here: Path) -> None:
    (here / "adapter").mkdir()
    (here / "adapter/mindformers_adapter_config.json").write_text("{}")
    [error] = applied(line).errors
    assert error.partition(": ")[2].startswith(expected)


def test_a_description_of_another_model_is_refused(here: Path) -> None:
    text = DYNAMIC.replace("FOLDER", "model").replace("model_type: qwen3", "model_type: deepseek_v3")
    errors = applied(text.replace("num_hidden_layers: 2", "num_hidden_layers: 3")).errors
    assert [error.partition(": ")[2].partition(":")[0] for error in errors] == [
        "model.model_type=deepseek_v3",
        "model.num_hidden_layers=3",
    ]


def test_keys_of_the_other_form_are_not_used(here: Path) -> None:
    result = applied("training: {}\npretrained_model_dir: model\nmodel: {model_config: {seq_length: 9}}")
    assert values(result) == {"model.provider": "native"}
    assert reasons(result)["pretrained_model_dir"] == "not used here"


@pytest.mark.parametrize(
    ("value", "task", "expected"),
    [
        ("rows.jsonl", BatchConfig, {"data.path": "rows.jsonl", "data.template": TEMPLATE}),
        ("lines.txt", BatchConfig, {"data.path": "lines.txt", "data.format": "text"}),
        ("lines.txt", GenerateConfig, {"prompts_file": "lines.txt"}),
        ("one, two,", GenerateConfig, {"prompts": ["one, two,"]}),
        (LONG, GenerateConfig, {"prompts": [LONG]}),
        ("[a, b]", GenerateConfig, {"prompts": ["a", "b"]}),
        ("{instruction: Add, input: 1 + 2}", GenerateConfig, {"prompts": ["Add\n1 + 2"]}),
        ("[{input: x}, {instruction: y, more: 1}]", GenerateConfig, {"prompts": ["x", "y"]}),
        ("''", BatchConfig, {}),
        ("[]", GenerateConfig, {}),
        ("hello", LayoutTaskConfig, {}),
        ("lines.txt", LayoutTaskConfig, {}),
        ("lines.txt", ModelTaskConfig, {}),
    ],
)
def test_inputs_in_each_task(
    value: str, task: type[TaskConfig], expected: dict[str, object], here: Path
) -> None:
    found = values(applied(with_input(value), task))
    idle = {"model.provider", "model.batch_size", "decoding.max_new_tokens"}
    assert {key: item for key, item in found.items() if key not in idle} == expected


@pytest.mark.parametrize("value", ["rows.jsonl", "lines.text.txt", "[1]", "{other: x}", "[a, '']"])
def test_inputs_that_generate_cannot_take(value: str, here: Path) -> None:
    [error] = applied(with_input(value), GenerateConfig).errors
    assert "p.yaml, line 2: inference.input_data" in error


@pytest.mark.parametrize(
    ("task", "overrides", "kept"),
    [
        (GenerateConfig, {"prompts": ["x"]}, {}),
        (GenerateConfig, {"messages": "chats.json"}, {}),
        (BatchConfig, {"data.path": "other.jsonl"}, {}),
        (BatchConfig, {"data.prompt_column": "instruction"}, {"data.path": "rows.jsonl"}),
    ],
)
def test_inputs_of_the_command_line_override_those_of_the_yaml(
    task: type[TaskConfig], overrides: dict[str, object], kept: dict[str, object], here: Path
) -> None:
    found = values(applied(with_input("rows.jsonl"), task, overrides))
    assert {key: item for key, item in found.items() if key.startswith(("data.", "prompts"))} == kept


def theirs(record: dict[str, Any]) -> str:
    """The prompt that MindFormers makes of a record; empty: it fails."""
    instruction, more = record.get("instruction", ""), record.get("input", "")
    if more:
        return f"{instruction}\n{more}" if instruction else str(more)
    return instruction or ""


@pytest.fixture(scope="module")
def template() -> DataTemplate:
    return DataTemplate(TemplateSource(TEMPLATE, "data.template"))


TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=4)


@given(st.dictionaries(st.sampled_from(["instruction", "input", "other"]), TEXTS))
def test_records_become_the_prompts_that_mindformers_makes(
    template: DataTemplate, record: dict[str, Any]
) -> None:
    try:
        prompt = template.render(Record("rows.jsonl", 1, record), None)
    except (ColumnError, PromptError):
        prompt = ""
    assert prompt == theirs(record)


SECTIONS = ("checkpoint", "inference", "parallelism", "training")


def test_every_key_that_mindformers_has_is_known(here: Path) -> None:
    """The fields of its classes of configurations are read from its source, which is not imported."""
    package = find_spec("mindformers")
    home = Path(package.origin or "").parent if package else Path()
    source = home / "pynative/config/config.py"
    classes = ast.parse(source.read_text()).body if source.is_file() else []
    fields = {
        node.name.removesuffix("Config").lower(): [
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        for node in classes
        if isinstance(node, ast.ClassDef)
    }
    if "inference" not in fields:
        pytest.skip("MindFormers 2.1 is not installed")
    lines = [f"{name}: null" for name in fields["train"] if name not in (*SECTIONS, "model", "context")]
    for section in SECTIONS:
        lines += [f"{section}:", *(f"  {name}: null" for name in fields[section])]
    result = applied("\n".join(lines))
    assert not [error for error in result.errors if "unknown key" in error]
    assert "not used here" not in result.unused


def test_it_composes_in_each_task_and_the_command_line_overrides_it(here: Path) -> None:
    words = ("model.mindformers_yaml=p.yaml", "parallel.model_parallel=1")
    batch = config_of("batch", *words, "output.dir=run")
    assert (batch.data.template, batch.decoding.max_new_tokens, batch.model.batch_size) == (TEMPLATE, 12, 3)
    assert (
        Path(batch.data.path[0] if isinstance(batch.data.path, tuple) else batch.data.path).name
        == "rows.jsonl"
    )
    generate = config_of("generate", *words, "prompts=Hi", "decoding.max_new_tokens=4")
    assert (generate.decoding.max_new_tokens, generate.model.seq_length) == (4, 64)
    assert faults_of_task("generate", *words) == [
        "p.yaml, line 13: inference.input_data=rows.jsonl: records are a dataset: use mindbatch batch, or "
        "name prompts on the command line"
    ]
