"""config.json is read in one form, whichever release of transformers wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.backends.mindformers import families
from mindbatch.config_json.forms import placeholder_ids
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe

# Saved by 4.57 (`older`) and, where that differs, by 5.24 (`newer`; keys of `gone` are not there).
LINES = (Path(__file__).parent / "saved_configs.jsonl").read_text().splitlines()
SAVED = {case["case"]: case for case in map(json.loads, LINES)}
LLAMA = SAVED["llama"]["older"]
GEMMA = SAVED["gemma3"]["older"]


def newer(case: str) -> dict[str, Any]:
    older = {key: value for key, value in SAVED[case]["older"].items() if key not in SAVED[case]["gone"]}
    return older | SAVED[case]["newer"]


def errors_of(config: dict[str, Any]) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        describe(config)
    return list(caught.value.lines)


@pytest.mark.parametrize("case", SAVED)
def test_both_releases_describe_the_same_model(case: str) -> None:
    assert describe(newer(case)) == describe(SAVED[case]["older"])


def test_every_key_that_is_elsewhere_is_named_with_its_place() -> None:
    config = newer("llama") | {"rope_parameters": {"rope_theta": "x", "partial_rotary_factor": 0.5}}
    assert errors_of(config) == [
        "config.json: rope_parameters.partial_rotary_factor=0.5: not supported; allowed: 1.0",
        "config.json: rope_parameters.rope_theta='x': must be a number above 0, and one of float32",
    ]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (LLAMA | {"rope_parameters": {"rope_theta": 5e5}}, "rope_theta=10000.0: is 500000.0 in rope_param"),
        (LLAMA | {"rope_parameters": {"factor": 2.0}, "rope_scaling": {"type": "yarn"}}, "is {factor: 2.0}"),
        (SAVED["qwen3_moe"]["older"] | {"num_local_experts": 7}, "num_experts=6: is 7 in num_local_"),
        (SAVED["gpt_neox"]["older"] | {"rope_theta": 5e5}, "rotary_emb_base=10000: is 500000.0 in rope_"),
        (LLAMA | {"rope_parameters": {"sliding_attention": {}}}, "must have full_attention and sliding_att"),
        (GEMMA | {"rope_parameters": {"full_attention": {}, "sliding_attention": {"factor": 2}}}, "sliding_"),
        (LLAMA | newer("gemma3_local")["rope_parameters"], "full_attention={"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(config: dict[str, Any], line: str) -> None:
    assert any(line in fault for fault in errors_of(config))


BARE_GEMMA = {key: value for key, value in GEMMA.items() if not key.startswith("rope_")}
BASES = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}


@pytest.mark.parametrize("version", ["5.16.0", "5.24.0.dev0", "6"])
def test_what_newer_releases_left_beside_does_not_count(version: str) -> None:
    plain = BARE_GEMMA | {"rope_parameters": BASES}
    left = {"rope_theta": 2e4, "rope_type": "default"}
    by = {"transformers_version": version}
    assert describe(plain | {"rope_parameters": BASES | left} | by) == describe(plain)
    glm = SAVED["glm"]["older"]
    settings = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    nested = {"rope_parameters": settings, "partial_rotary_factor": 0.25}
    assert describe(glm | nested | by) == describe(glm | {"partial_rotary_factor": 0.5, "rope_theta": 1e4})


def test_a_base_that_earlier_ones_computed_with_is_refused() -> None:
    left = BARE_GEMMA | {"rope_parameters": BASES | {"rope_theta": 2e4}, "transformers_version": "5.12.0"}
    [line] = errors_of(left)
    expected = "rope_parameters.rope_theta=20000.0: is 1000000.0 in full_attention; remove one"
    assert line == f"config.json: {expected}"
    assert describe(left | {"rope_parameters": BASES | {"rope_theta": None, "rope_type": "default"}})


@pytest.mark.parametrize("key", ["rope_kind", "position_x", "post_norm", "attn_mask", "router_fn", "tie_x"])
def test_keys_that_by_their_name_are_computed_with_are_told(key: str) -> None:
    *lines, way_out = errors_of(LLAMA | {key: "x", "zeal": 1})
    assert f"config.json: {key}='x': unknown key of what a model computes, by its name" in lines
    assert "config.json: zeal=1: unknown key that may change what the model computes" in lines
    assert way_out.endswith(f"the results: 'model.ignore_config_keys=[{','.join(sorted([key, 'zeal']))}]'")


def test_keys_that_others_stand_for_cannot_be_ignored() -> None:
    with pytest.raises(
        CheckpointError, match="rope_parameters: the model uses this key of config.json; remove"
    ):
        describe(newer("phi3"), ignore=IgnoredKeys(("rope_parameters",)))


def test_gelu_of_the_first_gemma_is_its_approximation() -> None:
    older = SAVED["gemma"]["older"]
    assert describe(older | {"hidden_act": "gelu"}) == describe(older)


def test_windows_of_qwen2_moe_without_layer_types() -> None:
    """Every other layer, of the first max_window_layers."""
    config = SAVED["qwen2_moe_window"]["older"] | {"num_hidden_layers": 6, "max_window_layers": 3}
    assert describe(config).windows == (7, 0, 7, 0, 0, 0)


def test_only_a_head_that_was_trained_tied_is_scaled() -> None:
    t5, mt5 = SAVED["t5"]["older"], SAVED["mt5"]["older"]
    assert describe(t5).logits_factor == t5["d_model"] ** -0.5
    assert describe(t5 | {"scale_decoder_outputs": False}).logits_factor == 1
    assert describe(mt5 | {"tie_word_embeddings": True}).logits_factor == 1


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "qwen3_moe", "glm4", "glm4_moe", "deepseek_v3"])
def test_mindformers_families_read_both(case: str) -> None:
    without = {"num_nextn_predict_layers": 0}  # 5.24 writes 1 where nothing was said

    def described(config: dict[str, Any]) -> families.MindFormersSpec | list[str]:
        try:
            return families.describe(config | {"use_sliding_window": False, "layer_types": None} | without)
        except CheckpointError as error:
            return list(error.lines)

    assert described(newer(case)) == described(SAVED[case]["older"])


@pytest.mark.parametrize(
    "change",
    [
        {"type": "longrope"},
        {"rope_type": "longrope"},
        {"rope_type": "su", "original_max_position_embeddings": 128},
    ],
)
def test_longrope_in_every_form(change: dict[str, Any]) -> None:
    older = SAVED["phi3_long"]["older"]
    factors = {key: older["rope_scaling"][key] for key in ("short_factor", "long_factor")}
    assert describe(older | {"rope_scaling": factors | change}) == describe(older)
    for wrong in (
        {"rope_type": "longrope", "original_max_position_embeddings": 64},
        {"rope_type": "linear"},
        {},
    ):
        assert "must be null or {type" in errors_of(older | {"rope_scaling": factors | wrong})[0]


def test_the_tokens_that_stand_for_images_are_those_of_the_shell_and_its_text_part() -> None:
    around = {"image_token_index": 9, "boi_token_index": 7, "vision_start_token_id": None, "eos_token_id": 1}
    around |= {"audio_token_id": 5, "video_token_id": -1, "vision_end_token_id": 3, "pad_token_id": 0}
    shell = {"model_type": "gemma3", "text_config": {"image_token_id": 4, "bos_token_id": 2}, **around}
    assert {token for token, _ in placeholder_ids(shell)} == {3, 4, 5, 7, 9}
    assert (4, "image_token_id") in placeholder_ids(shell)
    assert placeholder_ids({"model_type": "llama", **around}) == ()
