"""config.json: every key is used, known not to matter, or refused; all faults at once."""

import re
import tracemalloc
from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import ConfigReader, IgnoredKeys
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe
from small_configs import BETWEEN, GPT2, LLAMA

BLOOM, T5 = ({"model_type": each} | BETWEEN[each] for each in ("bloom", "t5"))


def llama(**changes: Any) -> Architecture:
    return describe(LLAMA | changes)


def errors_of(config: dict[str, Any]) -> list[str]:
    with pytest.raises(CheckpointError) as refused:
        describe(config, source="folder/config.json")
    assert all(fault.startswith("folder/config.json: ") for fault in refused.value.lines)
    assert all("\n" not in fault for fault in refused.value.lines)
    return list(refused.value.lines)


def test_what_follows_from_other_keys() -> None:
    arch = llama()
    assert (arch.kv_heads, arch.head_dim, arch.windows) == (4, 8, (0, 0))
    assert arch.attention_scales == (8**-0.5,) * 2
    arch = describe(GPT2)
    assert (arch.intermediate_size, arch.activation, arch.rotary) == (128, "gelu_tanh", None)


def test_an_unknown_key_is_refused_with_a_near_name_where_there_is_one() -> None:
    [fault] = errors_of(LLAMA | {"num_key_value_head": 2})
    assert "num_key_value_head=2: unknown key" in fault
    assert "; did you mean num_key_value_heads?; if it does not change the results: 'model.ig" in fault
    [fault] = errors_of(LLAMA | {"final_logit_softcapping": 30.0})
    assert "final_logit_softcapping=30.0" in fault
    assert "did you mean" not in fault


def test_one_line_lets_all_unknown_keys_pass() -> None:
    """Those of what a model computes, too, and those that an earlier line let pass."""
    config = LLAMA | {"mystery": 1, "riddle": "x", "rope_kind": "y"}
    *faults, way_out = errors_of(config)
    assert len(faults) == 3
    offered = re.fullmatch(
        r"folder/config.json: if none of these keys changes the results: "
        r"'model.ignore_config_keys=\[([\w,]+)\]'",
        way_out,
    )
    assert offered is not None
    assert describe(config, ignore=IgnoredKeys(tuple(offered[1].split(",")))) == llama()
    with pytest.raises(CheckpointError) as refused:
        describe(config | {"enigma": 2}, ignore=IgnoredKeys(("mystery", "riddle", "rope_kind")))
    assert refused.value.lines[-1].endswith("'model.ignore_config_keys=[mystery,riddle,rope_kind,enigma]'")


def test_no_line_is_offered_that_could_not_be_pasted() -> None:
    for config in ({"a'; rm b": 1}, {f"key_{number}": 1 for number in range(101)}):
        assert "ignore_config_keys" not in errors_of(LLAMA | config)[-1]


@pytest.mark.parametrize("value", [3, "=other", "=absent"])
def test_a_key_that_says_what_is_computed_anyway(value: object) -> None:
    for found, is_allowed in ((3, True), (4, False), (None, True), (False, True)):
        reader = ConfigReader({"key": found, "other": 3}, defaults={"absent": 3})
        reader.check_computed({"key": [value]})
        reader.ignore(["other"])
        assert reader.errors == ([] if is_allowed else ["config.json: key=4: not supported; allowed: 3"])
        if is_allowed:
            reader.finish()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("hidden_size", "the model uses"), ("absent", "has no such key"), ("rope_theta", "uses")],
)
def test_a_key_that_cannot_be_ignored(name: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"model.ignore_config_keys: {name}: .*{reason}.*; remove it"):
        describe(LLAMA, ignore=IgnoredKeys((name,)))


def test_a_key_of_the_assistant_may_be_missing() -> None:
    assert describe(LLAMA, ignore=IgnoredKeys(("absent",), may_lack=True)) == llama()


@pytest.mark.parametrize("value", [None, False, "", [], {}, 0])
def test_neutral_values_of_unknown_keys_pass(value: object) -> None:
    assert llama(some_future_switch=value) == llama()


def test_what_does_not_change_the_mathematics_passes() -> None:
    """Keys of trainers, exporters and servers, as published models have them."""
    noise = {"architectures": ["X"], "torch_dtype": "bfloat16", "use_cache": True, "bos_token_id": 1}
    noise |= {"auto_map": {"AutoModel": "modeling.X"}, "initializer_range": 0.5, "_num_labels": 1}
    noise |= {"predict_special_tokens": True, "output_past": True, "is_llama_config": True, "seed": 7}
    noise |= {"transformers.js_config": {"dtype": "q4"}, "max_sequence_length": 2048, "use_flash_attn": True}
    noise |= {"_flash_attn_2_enabled": True, "model_max_length": 4096, "use_liger_kernel": True}
    noise |= {
        "neftune_noise_alpha": 5,
        "_model_name_or_path": "x/y",
        "unsloth_version": "2025.9",
        "onnx": {1: 2},
    }
    noise |= {"z_loss": 0.1, "expert_capacity": 64, "mtp_num_layers": 1, "num_nextn_predict_layers": 1}
    noise |= {
        "multi_token_pred_lambda": 0.3,
        "_pre_quantization_dtype": "bfloat16",
        "custom_pipelines": {1: 2},
    }
    assert llama(**noise) == llama()


def test_all_faults_at_once() -> None:
    faults = errors_of(
        LLAMA | {"hidden_size": "wide", "num_key_value_heads": 3, "hidden_act": "softplus", "mystery": 1}
    )
    assert len(faults) == 4
    for part in ("hidden_size='wide'", "num_key_value_heads=3", "hidden_act='softplus'", "mystery=1"):
        assert any(part in fault for fault in faults)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num_hidden_layers", 0, "above 0"),
        ("num_hidden_layers", True, "whole number"),
        ("vocab_size", None, "whole number"),
        ("vocab_size", 1.5, "whole number"),
        ("rms_norm_eps", "small", "number above 0"),
        ("rms_norm_eps", float("inf"), "number above 0"),
        ("rope_theta", -1.0, "number above 0"),
        ("rope_theta", 1e-300, "number above 0, and one of float32"),
        ("rms_norm_eps", 1e-300, "number above 0, and one of float32"),
        ("rope_theta", 10**400, "number above 0, and one of float32"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("attention_bias", 1, "true or false"),
        ("head_dim", 7, "even"),
        ("rope_scaling", "linear", "must be null or an object with a rope_type"),
        ("rope_scaling", {"rope_type": "magic"}, "not supported; allowed: default, linear, llama3, yarn"),
        ("rope_scaling", {"rope_type": ["yarn"]}, "not supported"),
        ("rope_scaling", {"rope_type": "linear"}, "factor"),
        ("rope_scaling", {"rope_type": "linear", "factor": "two"}, "valid parameters"),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}, "valid parameters"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "magic": 3}, "magic"),
        ("partial_rotary_factor", 0.5, "not supported; allowed: 1.0"),
        ("rope_scaling", {"type": "linear", "factor": 2.0, "finetuned": True}, "finetuned"),
        ("rope_scaling", {"factor": 2.0}, "has a factor and no rope_type"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, value: object, allowed: str) -> None:
    [fault] = errors_of(LLAMA | {key: value})
    assert f"{key}=" in fault
    assert allowed in fault


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (4096, 4096)),
        ({"sliding_window": None}, (0, 0)),
        ({"sliding_window": 7}, (7, 7)),
    ],
)
def test_windows_of_mistral(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    """An absent key has transformers' default; null means full attention."""
    assert describe(LLAMA | {"model_type": "mistral", "num_key_value_heads": 2} | changes).windows == windows


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 7}, (0, 0, 0)),
        ({"sliding_window": 7, "use_sliding_window": True}, (0, 0, 0)),
        ({"sliding_window": None, "use_sliding_window": True, "max_window_layers": 1}, (0, 0, 0)),
        ({"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}, (0, 7, 7)),
        (
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            (7, 0, 0),
        ),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_of_qwen(family: str, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = LLAMA | {"model_type": family, "num_hidden_layers": 3, "num_key_value_heads": 2} | changes
    assert describe(config).windows == windows


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"layer_types": 3},
        {"layer_types": [["full_attention"], "full_attention"]},
        {"max_window_layers": "all"},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True, "sliding_window": None},
    ],
)
def test_bad_windows_of_qwen(changes: dict[str, Any]) -> None:
    [fault] = errors_of(LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2} | changes)
    assert next(iter(changes)) in fault


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_theta": 5e5}}, "is 500000.0 in rope_scaling"),
        (
            LLAMA | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "is 500000.0 in rope_parameters",
        ),
        (
            LLAMA | {"model_type": "granite", "attention_multiplier": None},
            "attention_multiplier=null: must be",
        ),
        (T5 | {"feed_forward_proj": "gelu", "dense_act_fn": "relu"}, "dense_act_fn='relu'.*allowed: 'gelu'"),
        (
            T5 | {"feed_forward_proj": "gated-gelu", "is_gated_act": False},
            "is_gated_act=false.*allowed: true",
        ),
        (T5 | {"tie_encoder_decoder": True}, "tie_encoder_decoder=true.*allowed: false"),
        (BLOOM | {"pretraining_tp": 4, "slow_but_exact": True}, "slow_but_exact=true.*allowed: false"),
    ],
)
def test_keys_that_say_two_things_or_what_no_layer_computes(config: dict[str, Any], said: str) -> None:
    """Each changes what transformers computes."""
    [fault] = errors_of(config)
    assert re.search(said, fault)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}},
        T5 | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True},
        BLOOM | {"pretraining_tp": 1, "slow_but_exact": True},
    ],
)
def test_keys_that_say_one_thing_twice(config: dict[str, Any]) -> None:
    assert describe(config)


def test_mathematics_that_is_not_there_is_refused() -> None:
    [fault] = errors_of(GPT2 | {"add_cross_attention": True})
    assert "add_cross_attention=true: not supported; allowed: false" in fault
    [fault] = errors_of(LLAMA | {"model_type": "minimind", "use_moe": "yes"})
    assert "use_moe='yes'" in fault
    [fault] = errors_of(GPT2 | {"n_head": 5})
    assert "n_embd=32: must be divisible by n_head=5" in fault


def test_scales_of_gpt2() -> None:
    assert describe(GPT2 | {"scale_attn_weights": False}).attention_scales == (1.0, 1.0)
    by_layer = describe(GPT2 | {"scale_attn_by_inverse_layer_idx": True}).attention_scales
    assert by_layer == (8**-0.5, 8**-0.5 / 2)


def test_a_reader_that_is_not_finished_keeps_its_faults() -> None:
    reader = ConfigReader({"a": -1})
    assert reader.positive("a") == 1
    assert reader.errors == ["config.json: a=-1: must be a whole number above 0"]


CHATGLM = LLAMA | {
    "model_type": "chatglm",
    "num_layers": 2,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "padded_vocab_size": 100,
    "kv_channels": 8,
    "ffn_hidden_size": 48,
    "seq_length": 64,
}
SIZES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama": (LLAMA, ["num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "vocab_size"]),
    "mistral": (LLAMA | {"model_type": "mistral"}, ["num_hidden_layers", "sliding_window"]),
    "qwen2": (LLAMA | {"model_type": "qwen2"}, ["num_hidden_layers", "num_key_value_heads"]),
    "qwen3": (LLAMA | {"model_type": "qwen3"}, ["num_hidden_layers", "max_position_embeddings"]),
    "gpt2": (GPT2, ["n_layer", "n_embd", "n_head", "n_inner", "vocab_size", "n_positions"]),
    "chatglm": (CHATGLM, ["num_layers", "kv_channels", "padded_vocab_size", "seq_length"]),
}


@pytest.mark.parametrize("model_type", SIZES)
def test_sizes_beyond_belief_are_refused_before_anything_is_made_of_them(model_type: str) -> None:
    """n_layer=1e8 made tuples of 2 GB; a billion layers would take minutes, so a long test is a failure."""
    config, keys = SIZES[model_type]
    for key in keys:
        tracemalloc.start()
        with pytest.raises(CheckpointError) as refused:
            describe(config | {key: 10**10}, to_be_run=False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert any(f"{key}=" in fault and "must be at most" in fault for fault in refused.value.lines)
        assert peak < 10 << 20


def test_many_and_long_unknown_keys_are_counted_and_cut() -> None:
    faults = errors_of(LLAMA | {f"key_{number}": 1 for number in range(100_000)} | {"z" * 10**6: "y" * 10**6})
    assert len(faults) == 11
    assert faults[-1].endswith("and 99991 more unknown keys")
    [fault] = errors_of(LLAMA | {"z" * 10**6: ["y" * 10**6]})
    assert len(fault) < 300
