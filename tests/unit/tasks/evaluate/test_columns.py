"""Columns: every checkpoint with every adapter and every decoding, and the run that each of them is."""

from pathlib import Path

import yaml

from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.schema import schema_keys
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.evaluate.columns import adapters_of, columns_of, run_config
from mindbatch.tasks.evaluate.schema import EvaluateConfig

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


def test_one_metric_needs_no_list() -> None:
    keys = schema_keys(EvaluateConfig)
    config = EvaluateConfig(metrics="f1")
    assert config.metric_names == ("f1",)
    config.metrics = "f2"
    assert any("metrics: f2: no such metric" in fault for fault in config.run_faults(keys))


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
    config.resolved_settings = {"data": {"chat_template_kwargs": "${oc.env:KWARGS}"}}
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
