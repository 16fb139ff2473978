"""The table of predict YAMLs: each key is used, without effect for a reason, or refused."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.predict_yaml.apply import DYNAMIC_GRAPHS, STATIC_GRAPHS, Applied, apply_table
from mindbatch.config.predict_yaml.conversions import MapsTo
from mindbatch.config.predict_yaml.tables import UNREAD
from mindbatch.config.schema import schema_keys
from mindbatch.io.errors import ConfigError
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.generate.schema import GenerateConfig
from mindbatch.tasks.layout.schema import LayoutTaskConfig
from predict_yamls import CHATGLM_6B, CHATGLM_6B_CONFIG, LLAMA, MCORE, OLDER, PANGU, PANGU_CONFIG

KEYS = schema_keys(ModelTaskConfig)
MORE_OF_THEM = {
    PANGU: ["hidden_act: 'fast_gelu'", "post_layernorm_residual: False", "use_moe: False"],
    CHATGLM_6B: ["inner_hidden_size: 48", "gmask_token_id: 59", "layernorm_order: 'post'"],
}
"""What describes those models and no others."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with the config.json that the older YAML describes, and no more."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    return made


def applied(
    tmp_path: Path, text: str, overrides: dict[str, object] | None = None, strategy: str = ""
) -> Applied:
    file = tmp_path / "p.yaml"
    file.write_text(text.replace("FOLDER", str(tmp_path / "model")))
    return apply_table(file, KEYS, overrides, strategy)


def values(result: Applied) -> dict[str, object]:
    assert result.errors == []
    return {key: setting.value for key, setting in result.settings.items()}


def reasons(result: Applied) -> dict[str, str]:
    return {key: why for why, keys in result.unused.items() for key in keys}


def faults(tmp_path: Path, text: str, overrides: dict[str, object] | None = None) -> list[str]:
    lines = applied(tmp_path, text, overrides).errors
    return [line.removeprefix(f"{tmp_path}/p.yaml, ") for line in lines]


@pytest.mark.parametrize(
    ("text", "overrides", "dtype"),
    [
        ("seed: 1", {}, ", in float32"),
        ("seed: 1", {"model.dtype": "bfloat16"}, ""),
        ("seed: 1", {"runtime.device_target": "CPU"}, None),
        ("context: {device_target: CPU}", {}, None),
        ("context: {device_target: Ascend}", {}, None),
        ("context: {device_target: GPU}", {}, None),
    ],
)
def test_without_a_device_a_note_names_the_cpu(
    text: str, overrides: dict[str, object], dtype: str | None, tmp_path: Path
) -> None:
    message = f"the model runs on a CPU{dtype}; set runtime=ascend for NPUs"
    note = f"{tmp_path}/p.yaml: no context.device_target: {message}"
    assert applied(tmp_path, text, overrides).notes == ([] if dtype is None else [note])


def test_greedy_decoding_as_top_k_is_no_news(tmp_path: Path) -> None:
    text = "generation_config: {do_sample: False, top_k: 1, top_p: 1.0, temperature: 0.7}"
    assert reasons(applied(tmp_path, text)) == {
        "generation_config.temperature": "nothing is sampled without do_sample: True"
    }


def test_a_yaml_of_the_newer_form(tmp_path: Path, folder: Path) -> None:
    result = applied(tmp_path, MCORE)
    assert values(result) == {
        "model.provider": "mindformers",
        "model.checkpoint_name_or_path": str(folder),
        "model.seq_length": 64,
        "decoding.seed": 7,
        "decoding.do_sample": True,
        "decoding.temperature": 0.7,
        "decoding.top_k": 5,
        "decoding.top_p": 0.5,
        "decoding.repetition_penalty": 1.05,
        "decoding.max_new_tokens": 512,
        "decoding.eos_token_id": [2],
        "parallel.data_parallel": 1,
        "runtime.block_size": 128,
    }
    why = reasons(result)
    assert why["parallel_config.model_parallel"] == "use_parallel is not True"
    assert why["generation_config.max_length"] == "max_new_tokens overrides it"
    assert (
        why["model.model_config.compute_dtype"]
        == "on a CPU a YAML's half types are not used; set model.dtype"
    )
    assert why["model.model_config.num_blocks"] == "runtime.cache_memory sets the size of the cache"


def test_a_yaml_of_the_older_form(tmp_path: Path, folder: Path) -> None:
    result = applied(tmp_path, OLDER)
    assert values(result) == {
        "model.provider": "native",
        "model.checkpoint_name_or_path": str(folder),
        "model.tokenizer": str(folder),
        "model.batch_size": 4,
        "model.seq_length": 48,
        "model.use_past": True,
        "model.dtype": "float32",
        "decoding.seed": 0,
        "decoding.do_sample": False,
        "decoding.repetition_penalty": 1,
        "decoding.max_length": 40,
        "decoding.eos_token_id": 2,
        "parallel.data_parallel": 1,
        "parallel.model_parallel": 1,
        "parallel.pipeline_stage": 1,
        "runtime.device_target": "CPU",
        "runtime.block_size": 16,
    }
    why = reasons(result)
    assert why["model.model_config.top_k"] == "nothing is sampled without do_sample: True"
    assert why["model.model_config.checkpoint_name_or_path"] == "load_checkpoint overrides it"
    assert why["model.model_config.auto_map"] == "code named in a file is never run"
    assert why["train_dataset"] == why["optimizer"] == "of training"
    assert "num_layers" not in str(why), "config.json says the same"


def test_targets_of_the_table_are_keys() -> None:
    rules = [*STATIC_GRAPHS.table.values(), *DYNAMIC_GRAPHS.table.values()]
    targets = {
        target for entry in rules if isinstance(entry, MapsTo) for target in (entry.target, *entry.others)
    }
    of_tasks = (schema_keys(task).keys.keys() for task in (BatchConfig, GenerateConfig, LayoutTaskConfig))
    assert targets <= {"runtime.device_memory"}.union(*of_tasks)  # the first: not yet


def test_the_yamls_that_mindformers_ships_are_known() -> None:
    """Nothing in them is refused."""
    found = find_spec("mindformers")
    if found is None or found.origin is None:
        pytest.skip("mindformers is not installed")
    configs = Path(found.origin).parents[1] / "configs"
    files = sorted(configs.glob("*/predict_*.yaml"))
    assert files
    for file in [*files, *configs.glob("*/*_pynative.yaml")]:
        assert apply_table(file, KEYS).errors == []


@pytest.mark.parametrize(("text", "config"), [(PANGU, PANGU_CONFIG), (CHATGLM_6B, CHATGLM_6B_CONFIG)])
def test_yamls_of_older_releases(tmp_path: Path, folder: Path, text: str, config: dict[str, object]) -> None:
    """What describes the model is compared with config.json under its own names."""
    (folder / "config.json").write_text(json.dumps(config))
    found = values(applied(tmp_path, text))
    assert found["model.provider"] == "native"
    assert found["decoding.max_length"] == 64
    for changed in ("num_heads: 4", "hidden_size: 32", *MORE_OF_THEM[text]):
        name, _, value = changed.partition(": ")
        assert changed in text
        other = text.replace(changed, f"{name}: {'relu' if value.startswith(chr(39)) else 7}")
        assert len(faults(tmp_path, other)) == 1, changed


def test_where_a_value_comes_from_is_told(tmp_path: Path, folder: Path) -> None:
    setting = applied(tmp_path, MCORE).settings["decoding.top_p"]
    assert setting.source == f"{tmp_path}/p.yaml, line 36: generation_config.top_p -> "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run_mode: train", "run_mode=train: only predict YAMLs are supported"),
        ("use_legacy: 'no'", "use_legacy=no: must be True or False"),
        ("register_path: ./mine", "register_path=./mine: code named in a file is never run"),
        ("trust_remote_code: True", "trust_remote_code=true: code named in a file is never run"),
        ("model: {arch: {auto_register: a.B}}", "model.arch.auto_register=a.B: code named in"),
        (
            "model: {model_config: {pet_config: {pet_type: lora}}}",
            "model.model_config.pet_config.pet_type=lora: needs the adapter in load_checkpoint",
        ),
        (
            "model: {model_config: {quant_config: {a: b}}}",
            "model.model_config.quant_config: config.json",
        ),
        (
            "model: {model_config: {compute_dtype: int8}}",
            "model.model_config.compute_dtype=int8: must be one",
        ),
        ("model: {arch: {type: BloomLMHeadModel}}", "model.arch.type=BloomLMHeadModel: not supported"),
        (
            "model: {arch: {type: Mine}}",
            "model.arch.type=Mine: not supported; allowed with use_legacy: True: LlamaForCausalLM, ",
        ),
        ("model: {arch: {type: [a]}}", "model.arch.type=[a]: not supported"),
        (
            "load_checkpoint: not_load_any_ckpt",
            "load_checkpoint=not_load_any_ckpt: a model needs",
        ),
        ("load_checkpoint: /x/llama2_7b.ckpt", "load_checkpoint=/x/llama2_7b.ckpt: convert weights"),
        ("only_save_strategy: True", "only_save_strategy=true: to write strategy files: mindbatch layout"),
        ("src_strategy_path_or_dir: s", "src_strategy_path_or_dir=s: merge a sharded checkpoint"),
        ("input_data: hello", "input_data=hello: use prompts, prompts_file or data.path"),
        ("trainer: {type: ImageTrainer}", "trainer.type=ImageTrainer: only CausalLanguageModelingTrainer"),
        ("parallel_config: {expert_parallel: 2}", "parallel_config.expert_parallel=2: experts are sharded"),
        ("moe_config: {expert_num: 8}", "moe_config.expert_num=8: models with experts run with"),
        ("context: {device_target: Ascend, device_id: 3}", "context.device_id=3: the first visible device"),
        ("context: 3", "context=3: must be a section of keys"),
        ("output_dir: ${oc.env:HOME}", "output_dir: ${...} is not resolved here; write the value itself"),
        ("context.mode: 0", "context.mode: unknown key; write nested keys, not dotted ones"),
        ("run_mod: predict", "run_mod=predict: unknown key; did you mean run_mode?"),
        ("model: {model_config: {top_kk: 1}}", "model.model_config.top_kk=1: unknown key; did you mean"),
        ("model: {top_k: 1}", "model.top_k=1: unknown key; did you mean generation_config.top_k?"),
    ],
)
def test_what_cannot_be_done_is_refused(line: str, expected: str, tmp_path: Path) -> None:
    found = faults(tmp_path, line)
    assert len(found) == 1
    assert found[0].startswith(f"line 1: {expected}")


def test_unknown_keys_have_no_effect_and_are_named(tmp_path: Path, folder: Path) -> None:
    """So are those of the network that config.json does not have."""
    text = "load_checkpoint: FOLDER\nquite_another_thing: {a: 1}\ncontext: {of_tomorrow: 1}\n"
    text += "model: {model_config: {pet_config: {rank: 3}, use_flash_attention: True, hidden_dropout: 0.1}}"
    (folder / "config.json").write_text('{"hidden_dropout": 0.0}')
    result = applied(tmp_path, text)
    assert result.errors == []
    assert reasons(result) == {
        "quite_another_thing": "not used here",
        "context.of_tomorrow": "a setting of MindSpore that MindBatch sets itself",
        "model.model_config.pet_config.rank": "it is read from the adapter's files",
        "model.model_config.hidden_dropout": "of training",
        "model.model_config.use_flash_attention": "config.json, which is used, has no such key",
    }


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path, "run_mode: train\ncontext: 1\nuse_legcy: 2\nseed: ${x}\n")) == 4


@pytest.mark.parametrize("text", ["seed: !!python/object/apply:os.getcwd []", "seed: &a 1\nmodel: *a", "- 1"])
def test_what_is_no_plain_yaml_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        applied(tmp_path, text)


def test_a_description_of_another_model_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**LLAMA, "rope_theta": 10000}))
    text = OLDER.replace("num_layers: 2", "num_layers: 3").replace("theta: 10000.0", "theta: 500000.0")
    names = [line.partition(": ")[2].partition("=")[0] for line in faults(tmp_path, text)]
    assert names == [f"model.model_config.{name}" for name in ("num_layers", "theta")]
    assert "config.json of the model's folder has num_hidden_layers=2" in faults(tmp_path, text)[0]


def test_without_the_folder_there_is_nothing_to_compare(tmp_path: Path) -> None:
    result = applied(tmp_path, OLDER.replace("num_layers: 2", "num_layers: 3"))
    assert reasons(result)["model.model_config.num_layers"] == "config.json of the model's folder sets it"
    assert result.errors == []


def test_what_is_called_otherwise_is_the_same(tmp_path: Path, folder: Path) -> None:
    (folder / "config.json").write_text('{"activation_function": "gelu_new", "n_head": 4}')
    text = "load_checkpoint: FOLDER\nmodel: {model_config: {hidden_act: gelu, num_heads: 4}}"
    assert values(applied(tmp_path, text))["model.checkpoint_name_or_path"] == str(folder)
    assert faults(tmp_path, text.replace("gelu", "relu"))[0].endswith(
        "config.json of the model's folder has activation_function=gelu_new, which is used; remove it"
    )


def test_what_config_json_leaves_open(tmp_path: Path, folder: Path) -> None:
    (folder / "config.json").write_text('{"n_inner": null}')
    keys = "intermediate_size: 256, rope_ratio: 3"
    text = f"load_checkpoint: FOLDER\nmodel: {{model_config: {{{keys}}}}}"
    result = applied(tmp_path, text)
    why = "config.json, which is used, has no such key"
    names = ("intermediate_size", "rope_ratio")
    assert reasons(result) == {f"model.model_config.{name}": why for name in names}
    assert result.errors == []


def test_scaled_positions_must_be_those_of_the_folder(tmp_path: Path, folder: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    (folder / "config.json").write_text(json.dumps({"rope_scaling": scaling}))
    text = "load_checkpoint: FOLDER\nmodel: {model_config: {scaling_factor: {factor: 8}}}"
    assert faults(tmp_path, text) == []
    assert len(faults(tmp_path, text.replace("factor: 8", "factor: 4"))) == 1
    assert faults(tmp_path, text.replace("{factor: 8}", "8.0")) == []
    (folder / "config.json").write_text(json.dumps({"rope_parameters": {**scaling, "rope_theta": 5e5}}))
    assert faults(tmp_path, text.replace("}}}", "}, theta: 500000}}")) == []


def test_half_types_hold_on_a_device_that_has_them(tmp_path: Path, folder: Path) -> None:
    on_npu = applied(tmp_path, MCORE, {"runtime.device_target": "Ascend"})
    assert values(on_npu)["model.dtype"] == "bfloat16"
    assert "runtime.device_target" not in on_npu.settings


def test_weights_and_tokenizer_in_two_folders(tmp_path: Path, folder: Path) -> None:
    text = "use_legacy: False\nload_checkpoint: FOLDER\npretrained_model_dir: FOLDER/../other\n"
    assert values(applied(tmp_path, text)) == {
        "model.provider": "mindformers",
        "model.checkpoint_name_or_path": str(folder),
        "model.tokenizer": f"{folder}/../other",
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "qwen3"}')
    assert "line 3: pretrained_model_dir=" in faults(tmp_path, text)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use_legacy: True", "native"),
        ("use_legacy: False", "mindformers"),
        ("seed: 0", "native"),
        ("pretrained_model_dir: x", "mindformers"),
        ("pretrained_model_dir: x\nmodel: {model_config: {type: LlamaConfig}}", "native"),
    ],
)
def test_who_runs_the_model(text: str, expected: str, tmp_path: Path) -> None:
    assert values(applied(tmp_path, text))["model.provider"] == expected


def test_settings_override_the_yaml(tmp_path: Path, folder: Path) -> None:
    result = applied(tmp_path, MCORE, {"decoding.seed": 3, "decoding.max_new_tokens": 4})
    assert not {"decoding.seed", "decoding.max_new_tokens", "decoding.max_length"} & {*result.settings}
    assert reasons(result)["seed"] == "decoding.seed overrides it"


def test_overridden_values_are_not_refused(tmp_path: Path) -> None:
    text = "load_checkpoint: llama.ckpt\nmodel: {model_config: {compute_dtype: int8}}\n"
    text += "src_strategy_path_or_dir: strategy\n"
    assert len(faults(tmp_path, text)) == 3
    assert faults(tmp_path, text, {"model.checkpoint_name_or_path": "x", "model.dtype": "float32"}) == []


def test_a_strategy_overrides_the_yamls(tmp_path: Path, folder: Path) -> None:
    chosen = {"do_sample", "temperature", "top_k", "top_p"}
    for result in (
        applied(tmp_path, MCORE, {"decoding.do_sample": False}, "decoding=greedy"),
        applied(tmp_path, MCORE, {"decoding.do_sample": False}),
        applied(tmp_path, MCORE, strategy="the list of strategies"),
    ):
        assert not {f"decoding.{name}" for name in chosen} & {*result.settings}
        assert {f"generation_config.{name}" for name in chosen} <= {*reasons(result)}


def test_sections_that_are_not_read_have_no_entries() -> None:
    assert not {*UNREAD} & {*STATIC_GRAPHS.table, *DYNAMIC_GRAPHS.table}
