"""Every mistake in the options of a dataset is refused by name, with what to do instead."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.run.batch_config import CSV_FIELDS, RESULT_FIELDS, BatchConfig
from mindbatch.tasks.plan.schema import PlanConfig
from mindbatch.tasks.registry import TASKS


@pytest.fixture
def usable(model_folder: Path, tmp_path: Path) -> list[str]:
    """Overrides that make a configuration without faults."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Hi"}\n')
    return [
        f"model.checkpoint_name_or_path={model_folder}",
        f"data.path={rows}",
        f"output.dir={tmp_path}/runs/a",
    ]


def composed(overrides: list[str], task: str = "batch") -> BatchConfig:
    config = compose_task(TASKS[task], overrides).finish()
    assert isinstance(config, BatchConfig)
    return config


def faults(overrides: list[str], task: str = "batch") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_task(TASKS[task], overrides).finish()
    return list(caught.value.lines)


def test_usable_overrides_have_no_fault(usable: list[str], tmp_path: Path) -> None:
    config = composed(usable)
    assert config.data.path == f"{tmp_path}/rows.jsonl"
    assert config.output.dir == f"{tmp_path}/runs/a"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.template='Q: {{ question }}'"],
        ["data.messages_column=chat", "data.system=Hi"],
        ["data.prompt_column=q", "data.system=Hi"],  # a column may hold chats
        ["data.template=x", "data.chat=true", "data.system=Hi"],
        ["data.system=Hi"],
        ["data.filter_keys=[7, q-12]"],
        ["data.format=openai", "output.format=openai"],
        ["data.format=openai", "output.format=csv"],
        ["data.format=text", "data.template='{{ prompt }}!'"],
        ["data.limit=1", "data.skip=0", "data.shuffle_seed=0", "data.max_line_bytes=1GiB"],
        ["data=openai"],
        ["data=chat", "data.prompt_column=q"],
    ],
)
def test_what_goes_together(overrides: list[str], usable: list[str]) -> None:
    composed([*usable, *overrides])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.limit=0"], "data.limit=0: must be a whole number, at least 1"),
        (["data.skip=-1"], "data.skip=-1: must be a whole number, at least 0"),
        (["data.shuffle_seed=-1"], "data.shuffle_seed=-1: must be a whole number, at least 0"),
        (["data.limit=all"], "data.limit=all: must be a whole number, at least 1, or null"),
        (
            ["data.format=jsn"],
            "data.format=jsn: must be one of auto, jsonl, json, csv, tsv, text, parquet, openai; "
            "did you mean json?",
        ),
        (
            ["data=gsm"],
            "data=gsm: no such option; there are auto, chat, gsm8k, number_words, number_words_even, "
            "number_words_increasing, openai; did you mean gsm8k?",
        ),
        (["data.promt_column=q"], "data.promt_column: unknown key; did you mean data.prompt_column?"),
        (["prompts=Hi"], "prompts: unknown key; did you mean output.prompt?"),
        (["output.file=x"], "output.file: unknown key"),
        (["data.key_column=''"], "data.key_column: must not be empty"),
        (["data.template=''"], "data.template: must not be empty"),
        (
            ["data.prompt_column=a", "data.template=b"],
            "data.prompt_column, data.template: a prompt comes from only one of these",
        ),
        (
            ["data.prompt_column=a", "data.messages_column=b"],
            "data.prompt_column, data.messages_column: a prompt comes from only one of these",
        ),
        (
            ["data.messages_column=a", "data.chat=true"],
            "data.chat=true: has no effect with data.messages_column=a; remove it",
        ),
        (
            ["data.template=a", "data.system=b"],
            "data.system=b: has no effect with data.chat=false; set data.chat=true or remove it",
        ),
        (
            ["data.format=text", "data.key_column=id"],
            "data.key_column=id: has no effect with data.format=text; remove it",
        ),
        (
            ["data.format=openai", "data.decoding_column=d"],
            "data.decoding_column=d: has no effect with data.format=openai; remove it",
        ),
        (["data.filter_keys=[]"], "data.filter_keys=[]: leaves no row; null takes all"),
        (
            ["data.filter_keys=7"],
            "data.filter_keys=7: must be a list of keys, like [7, q-12], or a file with a key on each line",
        ),
        (
            ["data.filter_keys=[1, true]"],
            "data.filter_keys: true: a key is a text or a whole number; quote a text",
        ),
        (
            ["data.max_line_bytes=2GiB"],
            "data.max_line_bytes=2GiB: must be at most 1GiB, for a row is read as a whole",
        ),
        (
            ["data.format=csv", "output.format=openai"],
            "output.format=openai: answers requests in OpenAI's format, not data.format=csv; "
            "use jsonl, parquet or csv",
        ),
        (
            ["output.on_mismatch=new"],
            "output.on_mismatch=new: must be one of refuse, new_dir, overwrite; did you mean new_dir?",
        ),
        (
            ["progress=richh"],
            "progress=richh: must be one of auto, none, plain, rich; did you mean rich?",
        ),
        (["decoding.top_p=1.5"], "decoding.top_p=1.5: must be above 0 and at most 1"),
        (["output.dir=''"], "output.dir=: must not be empty"),
        (["output.dir=TMP/rows.jsonl"], "output.dir=TMP/rows.jsonl: is a file; give a folder"),
        (["output.dir=TMP/gone/a"], "output.dir=TMP/gone/a: TMP/gone is a file, not a folder"),
        (
            ["data.template_file=TMP/rows.jsonl", "data.template=x"],
            "data.template, data.template_file: only one of these can be given",
        ),
        *(
            (
                [f"data.{shown}", "data.template='{{ q }}'"],
                f"data.{shown}: has no effect with data.chat=false; set data.chat=true or remove it",
            )
            for shown in ("tools=[{name: f}]", "chat_template_kwargs={x: 1}", "tools_column=t")
        ),
    ],
)
def test_one_mistake_has_one_fault(
    overrides: list[str], expected: str, usable: list[str], tmp_path: Path
) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    here = [override.replace("TMP", str(tmp_path)) for override in overrides]
    assert faults([*usable, *here]) == [expected.replace("TMP", str(tmp_path))]


def test_what_must_be_given() -> None:
    assert [line.partition(":")[0] for line in faults([])] == [
        "model.checkpoint_name_or_path",
        "data.path",
        "output.dir",
    ]
    assert [line.partition(":")[0] for line in faults([], "plan")] == [
        "model.checkpoint_name_or_path",
        "data.path",
    ]


def test_all_faults_are_reported_at_once(usable: list[str], tmp_path: Path) -> None:
    lines = faults(
        [
            f"data.path={tmp_path}/row.jsonl",
            f"data.filter_keys={tmp_path}",
            f"data.template_file={tmp_path}/none.txt",
            f"output.dir={tmp_path}/rows.jsonl/a",
            "data.limit=0",
        ]
    )
    assert [line.replace(f"{tmp_path}/", "") for line in lines] == [
        "data.limit=0: must be a whole number, at least 1",
        "model.checkpoint_name_or_path: must be given: the folder of a model (model=tiny_gpt2 is shipped)",
        "data.path=row.jsonl: no such file or folder; did you mean rows.jsonl?",
        "data.template_file=none.txt: no such file",
        f"data.filter_keys={tmp_path}: is a folder; give a file with a key on each line",
        "output.dir=rows.jsonl/a: rows.jsonl is a file, not a folder",
    ]


def test_rows_may_be_a_folder_a_pattern_or_standard_input(usable: list[str], tmp_path: Path) -> None:
    for path in (".", "*.jsonl", "**/*.csv", "row?.jsonl"):
        composed([*usable, f"data.path={tmp_path}/{path}"])
    assert composed([*usable, "data.path=-"]).data.path == "-"
    (line,) = faults([*usable, f"data.path={tmp_path}/*.csv"])
    assert line.endswith("/*.csv: no file fits this pattern")
    (tmp_path / "odd[1].jsonl").write_text("{}")
    composed([*usable, f"data.path='{tmp_path}/odd[1].jsonl'"])


def test_a_folder_that_cannot_be_written(
    usable: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert faults(usable) == [f"output.dir={tmp_path}/runs/a: the folder {tmp_path} cannot be written"]
    composed(usable[:2] + ["output.dir=null"], "plan")


@pytest.mark.parametrize("text", ["2024_11", "1e3", "-5", "007", "0x10", "nan"])
def test_a_name_that_looks_like_a_number_is_taken_as_written(
    text: str, usable: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = composed([*usable, f"output.dir={text}", f"data.key_column={text}"])
    assert (config.output.dir, config.data.key_column) == (text, text)


def test_rates(usable: list[str]) -> None:
    config = composed([*usable, "rate=120.5"], "plan")
    assert isinstance(config, PlanConfig)
    assert config.rate == 120.5
    for rate in ("0", "-1", "inf", "nan"):
        (line,) = faults([*usable, f"rate={rate}"], "plan")
        assert line.endswith(": must be above 0, in generated tokens/s")
    (line,) = faults([*usable, "rate=1", "calibrate=true"], "plan")
    assert line.startswith("rate, calibrate: only one of these can be given")


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["data.max_line_bytes=much"], "data.max_line_bytes=much: must be bytes, or a number with KB"),
        (["output.columns=label"], "output.columns=label: must be a list of names of columns"),
        (["output.columns=[7]"], "output.columns=[7]: must be a list of names"),
        (["output.columns=[a,b,a]"], "output.columns: a is given twice"),
        (["output.columns=[prompt]"], "output.columns: prompt: results have a field of that"),
        (["output.columns=[text]", "output.format=csv"], "output.columns: text: results have"),
        (["output.columns=[a]", "data.format=openai"], "output.columns: OpenAI's requests have no col"),
        (["output.columns=[a]", "output.format=openai"], "nor have its responses"),
    ],
)
def test_one_mistake_has_one_long_fault(overrides: list[str], part: str, usable: list[str]) -> None:
    (fault,) = faults([*usable, *overrides])
    assert part in fault


def test_the_fields_of_results_are_those_that_columns_cannot_be_called() -> None:
    from mindbatch.run.parquet_results import schema
    from mindbatch.run.result_rows import OutputOptions, csv_columns

    options = OutputOptions(token_ids=True)
    assert {*csv_columns(options)} <= CSV_FIELDS
    assert {*schema(options, {}).names} == RESULT_FIELDS
