"""Columns: every checkpoint with every adapter and every decoding, and the run that each of them is."""

from pathlib import Path

import pytest
import yaml

from mindbatch.config.compose import compose_task
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.saved import WrittenSettings
from mindbatch.config.schema import schema_keys
from mindbatch.io.errors import ConfigError
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.evaluate.columns import Column, baselines_of, columns_of, model_of
from mindbatch.tasks.evaluate.runs import adapters_of, run_config
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.registry import TASKS

from .conftest import Configured

ADAPTERS = {"base": None, "law": "adapters/law", "a/b": {"path": "adapters/med", "scaling": 2}}


def test_names_have_what_differs_and_folders_all(configured: Configured) -> None:
    config = configured(decodings=("greedy", "sampling"))
    assert [column.name for column in columns_of(config)] == ["greedy", "sampling"]
    config.lora = LoraConfig(adapters=ADAPTERS)
    columns = columns_of(config)
    assert [column.name for column in columns][:3] == ["base+greedy", "base+sampling", "law+greedy"]
    assert [column.folder for column in columns][2] == "model+law+greedy"
    assert len({column.folder for column in columns}) == 6
    assert all("/" not in column.folder for column in columns)
    config.checkpoints = {"sft": "elsewhere"}
    assert [column.name for column in columns_of(config)][-1] == "sft+a/b+sampling"


TINY, ROWS = "shipped:examples/tiny_gpt2", "data.path=pyproject.toml data.format=text"


def composed(*overrides: str) -> EvaluateConfig:
    config = compose_task(TASKS["evaluate"], [*ROWS.split(), *overrides]).finish()
    assert isinstance(config, EvaluateConfig)
    return config


def test_checkpoints_need_no_model_beside_them() -> None:
    config = composed(f"checkpoints={{one: {TINY}, two: {TINY}}}")
    columns = columns_of(config)
    assert [column.name for column in columns] == ["one", "two"]
    assert {*baselines_of(config, columns).values()} == {"one"}
    assert [Path(model_of(config, each).checkpoint_name_or_path or "").name for each in columns] == [
        *["tiny_gpt2"] * 2
    ]
    assert [column.name for column in columns_of(composed(f"checkpoints={{sft: {TINY}}}"))] == ["sft"]


def test_an_adapter_is_compared_with_the_base_that_decodes_alike() -> None:
    """And the base's other decodings with its first."""
    config = composed("model=tiny_gpt2", "decoding=[greedy,top_p]")
    names = ("base+greedy", "base+top_p", "tuned+greedy", "tuned+top_p")
    columns = [Column(name, "model", name.split("+")[1], name.split("+")[0]) for name in names]
    base, hot, _, _ = names
    assert baselines_of(config, columns) == dict(zip(names, (base, base, base, hot), strict=True))
    config.baseline = hot
    assert {*baselines_of(config, columns).values()} == {hot}


@pytest.mark.parametrize(
    ("overrides", "faults"),
    [
        ([], ["model.checkpoint_name_or_path: must be given"]),
        (["checkpoints={}"], ["model.checkpoint_name_or_path: must be given"]),
        ([f"checkpoints={TINY}"], ["must be a mapping of names to folders"]),
        (["checkpoints={a: /nothing}"], ["checkpoints.a=/nothing: no such folder"]),
        (["model=tiny_gpt2", f"checkpoints={{model: {TINY}}}"], ["checkpoints.model: is the column of"]),
    ],
)
def test_no_model_at_all_or_two_of_one_name(overrides: list[str], faults: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        composed(*overrides)
    assert len(caught.value.lines) == len(faults)
    assert all(fault in line for fault, line in zip(faults, caught.value.lines, strict=True))


def test_one_metric_needs_no_list() -> None:
    keys = schema_keys(EvaluateConfig)
    config = EvaluateConfig(metrics="f1")
    assert config.metric_names == ("f1",)
    config.metrics = "f2"
    assert any("metrics: f2: no such metric" in fault for fault in config.run_errors(keys))


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.extract_pattern=\(: no regular expression"):
        composed("model=tiny_gpt2", "task.extract=pattern", "task.extract_pattern='('")


def test_a_run_has_its_columns_adapter_alone(configured: Configured, tmp_path: Path) -> None:
    """So that other columns, which come and go, are nothing that its results depend on."""
    config = configured()
    config.lora = LoraConfig(adapters=ADAPTERS, max_loaded=2)
    base, law, other = columns_of(config)
    assert adapters_of(config, base) == LoraConfig()
    assert adapters_of(config, law) == LoraConfig(adapters={"law": "adapters/law"}, default="law")
    assert adapters_of(config, other).default == "a/b"
    made = run_config(config, law, tmp_path / "rows.jsonl", tmp_path / "run", is_scored=False)
    assert made.lora.names == ("law",)


def test_a_saved_run_is_one_of_batch_and_keeps_references(configured: Configured, tmp_path: Path) -> None:
    config = configured(data={"chat_template_kwargs": {"token": "secret"}})
    config.written = WrittenSettings(
        type(config), {"data.chat_template_kwargs": "${oc.env:KWARGS}"}, tmp_path
    )
    [column] = columns_of(config)
    made = run_config(config, column, tmp_path / "rows.jsonl", tmp_path / "run", is_scored=True)
    saved = yaml.safe_load(made.unresolved_yaml)
    keys = schema_keys(BatchConfig).keys
    leaves = {
        f"{name}.{leaf}" for name, values in saved.items() if isinstance(values, dict) for leaf in values
    }
    assert leaves <= {*keys}
    assert saved["data"]["chat_template_kwargs"] == "${oc.env:KWARGS}"
    assert "secret" not in made.unresolved_yaml
    assert (saved["decoding"]["prompt_logprobs"], saved["data"]["decoding_column"]) == (0, "decoding")
