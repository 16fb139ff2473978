"""Which layers of MindFormers' models stand for all."""

from collections.abc import Mapping
from typing import Any

from mindbatch.backends.mindformers import families
from mindbatch.backends.mindformers.families import all_layers, layer_sample
from mindbatch.models.architecture import Architecture
from mindformers_configs import config


def describe(given: Mapping[str, Any]) -> Architecture:
    return families.describe(given).architecture


def test_layers_that_are_all_alike_have_one_that_stands_for_them() -> None:
    given = config("qwen3", num_hidden_layers=9)
    sample = layer_sample(describe(given), given)
    assert (sample.layers, sample.counts) == ((0,), (9,))
    assert describe(sample.config).num_layers == 1


def test_layers_with_experts_and_without_have_one_each() -> None:
    given = config("deepseek_v3", num_hidden_layers=61, first_k_dense_replace=3)
    sample = layer_sample(describe(given), given)
    assert (sample.layers, sample.counts) == ((0, 3), (3, 58))
    small = describe(sample.config)
    assert small.experts is not None
    assert (small.num_layers, small.experts.layers) == (2, (1,))


def test_where_all_layers_have_experts_the_first_is_enough() -> None:
    given = config("qwen3_moe", num_hidden_layers=4)
    sample = layer_sample(describe(given), given)
    assert (sample.layers, sample.counts) == ((0,), (4,))
    assert describe(sample.config).experts is not None


def test_lists_with_an_entry_for_each_layer_become_those_of_the_sample() -> None:
    given = config(
        "deepseek_v3", num_hidden_layers=4, first_k_dense_replace=2, layer_types=["a", "b", "c", "d"]
    )
    sample = layer_sample(describe({**given, "layer_types": None}), {**given, "eos_token_id": [1, 2, 3, 4]})
    assert sample.config["layer_types"] == ["a", "c"]
    assert sample.config["eos_token_id"] == [1, 2, 3, 4]
    published = config("qwen2", num_hidden_layers=9, layer_types=["full_attention"] * 9)
    assert describe(layer_sample(describe(published), published).config).num_layers == 1


def test_all_layers_are_no_sample() -> None:
    given = config("glm4_moe", num_hidden_layers=3)
    every = all_layers(describe(given), given)
    assert (every.layers, every.counts, every.config) == ((0, 1, 2), (1, 1, 1), given)
