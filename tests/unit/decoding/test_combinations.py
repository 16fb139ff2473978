"""What decoding parameters may be, each by itself and together, and that every fault is named at once."""

import re
from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.params import PARAMETERS
from mindbatch.io.errors import ConfigError

REFUSED: dict[str, list[Any]] = {
    "do_sample": [1, "true"],
    "temperature": [-0.1, float("nan"), float("inf"), 1e-40, "0.5", True],
    "top_k": [-1, 5.0, True],
    "top_p": [0.0, 1.5, float("nan"), 10**400],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, -1.0],
    "max_length": [0],
    "max_new_tokens": [0],
    "min_length": [-1, None],
    "min_new_tokens": [-1],
    "num_return_sequences": [0, 2**16 + 1],
    "top_h": [0, 1.1],
    "top_n_sigma": [-1, float("nan")],
    "typical_p": [0.0, 2],
    "epsilon_cutoff": [1, -0.1],
    "eta_cutoff": [1.0],
    "num_beams": [0, 2**12 + 1],
    "num_beam_groups": [0],
    "diversity_penalty": [-0.5, float("inf")],
    "length_penalty": [21, float("nan")],
    "early_stopping": ["always", 1, None],
    "penalty_alpha": [1.1, -0.1],
    "best_of": [0, 2**16 + 1],
    "num_assistant_tokens": [-1, None],
    "prompt_lookup_num_tokens": [1025],
    "max_matching_ngram_size": [0],
    "encoder_repetition_penalty": [0.0],
    "frequency_penalty": [2.1],
    "presence_penalty": [-2.1, "1"],
    "no_repeat_ngram_size": [-1],
    "encoder_no_repeat_ngram_size": [1.5],
    "bad_words_ids": [[[]], [5], [[1, -1]], [["a"]]],
    "sequence_bias": [
        {5: 1.0},
        [[[1], 2], [[1], 3]],
        [[[], 2]],
        [[[1], float("inf")]],
        [[[1], True]],
        [[[1], 2, 3]],
        "x",
    ],
    "logit_bias": [
        {5: 101},
        {5: float("nan")},
        {"five": 1},
        {"-5": 1},
        {5: 1, "5": 2},
        {True: 1},
        [[[1], 2]],
        [5],
        {"9" * 5000: 1},
    ],
    "suppress_tokens": [[-1]],
    "begin_suppress_tokens": ["5"],
    "forced_bos_token_id": [-1, [5]],
    "forced_eos_token_id": [[], True],
    "exponential_decay_length_penalty": [5, [5], [-1, 1.1], [1, 0.0], [1.5, 1.1]],
    "renormalize_logits": [1],
    "prefix_allowed_tokens_fn": ["print"],
    "regex": ["", 5],
    "seed": [-1, 2**64],
    "stop": ["", ["a", ""], [1], None],
    "eos_token_id": [-1, [1, -2], [True], "2"],
    "logprobs": [-1, 101],
    "prompt_logprobs": [1.0],
    "skip_special_tokens": [None],
}


class TestRanges:
    @pytest.mark.parametrize(
        ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
    )
    def test_refused(self, name: str, value: object) -> None:
        [fault] = faults(**{"do_sample": True, name: value})
        assert fault.startswith(f"decoding.{name}=")
        assert ": must be " in fault

    @pytest.mark.parametrize(
        "values",
        [
            {"temperature": 0},
            {"temperature": 0.0, "do_sample": True},
            {"do_sample": True, "top_p": 1, "min_p": 1, "top_k": 10**9, "seed": 2**64 - 1},
            {"logprobs": 0, "prompt_logprobs": 100},
            {"do_sample": True, "num_return_sequences": 3},
            {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": -1.5},
            {"num_beams": 4, "do_sample": True, "top_k": 5, "temperature": 0.7},
            {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 0.5, "num_return_sequences": 3},
            {"penalty_alpha": 1, "top_k": 2},
            {"best_of": 3, "do_sample": True, "num_return_sequences": 3, "length_penalty": 0, "top_p": 0.5},
            {"num_assistant_tokens": 1, "do_sample": True, "top_k": 5},
            {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3},
            {"eos_token_id": (), "forced_eos_token_id": 3, "min_length": 0},
            {"forced_eos_token_id": [3, 4], "suppress_tokens": [3], "bad_words_ids": [[3], [4]]},
            {"prefix_allowed_tokens_fn": lambda key, tokens: [1]},
            {"regex": "a", "stop": "b", "logprobs": 3},
        ],
    )
    def test_accepted(self, values: dict[str, Any]) -> None:
        DecodingParams(**values)

    def test_the_line_reads_as_promised(self) -> None:
        assert faults(do_sample=True, top_p=1.5) == ("decoding.top_p=1.5: must be above 0 and at most 1",)

    def test_a_long_value_is_shortened(self) -> None:
        [fault] = faults(max_length="x" * 10_000)
        assert len(fault) < 200

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"regex": "[a"}, "decoding.regex='[a': is no regular expression"),
            ({"regex": "(?=a)b"}, "decoding.regex='(?=a)b': has a look-around"),
        ],
    )
    def test_a_constraint_must_be_one(self, values: dict[str, Any], said: str) -> None:
        [fault] = faults(**values)
        assert fault.startswith(said)


def faults(**values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        DecodingParams(**values)
    return caught.value.lines


BARE_NAME = re.compile(rf"(?<!decoding\.)\b({'|'.join(name for name in PARAMETERS if '_' in name)})\b")

CANNOT_GO: dict[str, tuple[Any, ...]] = {
    "several greedy outputs": (
        {"num_return_sequences": 4},
        "@num_return_sequences=4 cannot go with @do_sample=false: greedy decoding has one output; sample, "
        "or use 1",
    ),
    "a shortest output beyond the longest by default": (
        {"min_new_tokens": 129},
        "@min_new_tokens=129 is above @max_new_tokens=null, which is 128; set @max_new_tokens",
    ),
    "filters at temperature 0": (
        {"do_sample": True, "temperature": 0, "top_k": 5, "top_p": 0.9},
        "@top_k=5 has no effect with @temperature=0.0; set @temperature above 0 or remove it",
        "@top_p=0.9 has no effect with @temperature=0.0; set @temperature above 0 or remove it",
    ),
    "several outputs at temperature 0": (
        {"num_return_sequences": 4, "do_sample": True, "temperature": 0},
        "@num_return_sequences=4 cannot go with @temperature=0.0: greedy decoding has one output; sample, "
        "or use 1",
    ),
    "several drafted greedy outputs": (
        {"num_return_sequences": 2, "prompt_lookup_num_tokens": 3},
        "@num_return_sequences=2 cannot go with @do_sample=false: greedy decoding has one output; sample, "
        "or use 1",
    ),
    "beams without beams": (
        {"num_beam_groups": 2, "early_stopping": "never"},
        "@num_beam_groups=2 has no effect with @num_beams=1; set @num_beams above 1 or remove it",
        "@early_stopping='never' has no effect with @num_beams=1; set @num_beams above 1 or remove it",
    ),
    "a length penalty of nothing": (
        {"length_penalty": 2},
        "@length_penalty=2.0 has no effect with @num_beams=1; set @num_beams above 1 or @best_of, or remove "
        "it",
    ),
    "diversity without groups": (
        {"num_beams": 4, "diversity_penalty": 1},
        "@diversity_penalty=1.0 has no effect with @num_beam_groups=1; set @num_beam_groups above 1 or "
        "remove it",
    ),
    "groups that all do the same": (
        {"num_beams": 4, "num_beam_groups": 2},
        "@diversity_penalty=0.0 cannot go with @num_beam_groups=2: all groups would find the same; set it "
        "above 0",
    ),
    "groups of unequal size": (
        {"num_beams": 6, "num_beam_groups": 4, "diversity_penalty": 1},
        "@num_beam_groups=4 must divide @num_beams=6",
    ),
    "groups that sample": (
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1, "do_sample": True},
        "@num_beam_groups=2 cannot go with @do_sample=true: group beam search does not sample; set "
        "@do_sample=false",
    ),
    "a filter of groups": (
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1, "top_k": 5},
        "@top_k=5 has no effect with @num_beam_groups=2, for group beam search does not sample; remove it",
    ),
    "a filter of beams": (
        {"num_beams": 4, "min_p": 0.1},
        "@min_p=0.1 has no effect with @do_sample=false; set @do_sample=true or remove it",
    ),
    "more outputs than beams": (
        {"num_beams": 4, "num_return_sequences": 5},
        "@num_return_sequences=5 is above @num_beams=4; must be at most that",
    ),
    "more outputs than candidates": (
        {"best_of": 4, "do_sample": True, "num_return_sequences": 5},
        "@num_return_sequences=5 is above @best_of=4; must be at most that",
    ),
    "candidates without sampling": (
        {"best_of": 4},
        "@best_of=4 has no effect with @do_sample=false; set @do_sample=true or remove it",
    ),
    "candidates that are all the same": (
        {"best_of": 4, "do_sample": True, "temperature": 0},
        "@best_of=4 has no effect with @temperature=0.0; set @temperature above 0 or remove it",
    ),
    "contrastive search of one token": (
        {"penalty_alpha": 0.6, "top_k": 1},
        "@top_k=1 cannot go with @penalty_alpha=0.6: contrastive search chooses among that many of the "
        "likeliest tokens; set @top_k to 2 or more",
    ),
    "contrastive search that samples": (
        {"penalty_alpha": 0.6, "top_k": 4, "do_sample": True},
        "@penalty_alpha=0.6 cannot go with @do_sample=true: contrastive search does not sample; set "
        "@do_sample=false",
    ),
    "a filter of contrastive search": (
        {"penalty_alpha": 0.6, "top_k": 4, "top_p": 0.5},
        "@top_p=0.5 has no effect with @penalty_alpha=0.6, for contrastive search does not sample; remove it",
    ),
    "several contrastive outputs": (
        {"penalty_alpha": 0.6, "top_k": 4, "num_return_sequences": 2},
        "@num_return_sequences=2 cannot go with @penalty_alpha=0.6: contrastive search has one output; use 1",
    ),
    "three strategies": (
        {"num_beams": 2, "num_assistant_tokens": 5, "prompt_lookup_num_tokens": 5},
        "@num_beams=2 cannot go with @num_assistant_tokens=5: beam search and speculative decoding with an "
        "assistant are two strategies; choose one",
        "@num_beams=2 cannot go with @prompt_lookup_num_tokens=5: beam search and speculative decoding by "
        "prompt lookup are two strategies; choose one",
    ),
    "two drafts": (
        {"num_assistant_tokens": 5, "prompt_lookup_num_tokens": 5},
        "@num_assistant_tokens=5 cannot go with @prompt_lookup_num_tokens=5: speculative decoding with an "
        "assistant and speculative decoding by prompt lookup are two strategies; choose one",
    ),
    "n-grams that nobody looks up": (
        {"max_matching_ngram_size": 3},
        "@max_matching_ngram_size=3 has no effect with @prompt_lookup_num_tokens=0; set "
        "@prompt_lookup_num_tokens above 0 or remove it",
    ),
    "ends that never come": (
        {
            "eos_token_id": [],
            "min_length": 3,
            "min_new_tokens": 2,
            "exponential_decay_length_penalty": [1, 2],
        },
        "@exponential_decay_length_penalty=[1, 2.0] has no effect with @eos_token_id=[]; name end tokens "
        "or remove it",
        "@min_length=3 has no effect with @eos_token_id=[]; name end tokens or remove it",
        "@min_new_tokens=2 has no effect with @eos_token_id=[]; name end tokens or remove it",
    ),
    "a first token that is settled": (
        {"forced_bos_token_id": 3, "begin_suppress_tokens": [4]},
        "@begin_suppress_tokens=[4] has no effect with @forced_bos_token_id=3; set @forced_bos_token_id=null "
        "or remove it",
    ),
    "a forced token that is suppressed": (
        {"forced_bos_token_id": 3, "suppress_tokens": [3, 4]},
        "@forced_bos_token_id=3 cannot go with @suppress_tokens=[3, 4], which leaves nothing to choose",
    ),
    "forced ends that are suppressed": (
        {"forced_eos_token_id": [3, 4], "suppress_tokens": [4, 3]},
        "@forced_eos_token_id=[3, 4] cannot go with @suppress_tokens=[4, 3], which leaves nothing to choose",
    ),
    "two constraints": (
        {"regex": "a", "json_schema": {}},
        "@regex='a' cannot go with @json_schema='{}': the output can follow only one of them",
    ),
}
"""Parameters, and what is said of them."""


class TestCombinations:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", 0.7),
            ("top_k", 5),
            ("top_p", 0.9),
            ("min_p", 0.1),
            ("top_h", 0.4),
            ("top_n_sigma", 1.5),
            ("typical_p", 0.9),
            ("epsilon_cutoff", 0.1),
            ("eta_cutoff", 0.1),
        ],
    )
    def test_sampling_parameters_without_sampling(self, name: str, value: float) -> None:
        [fault] = faults(**{name: value})
        expected = "has no effect with decoding.do_sample=false; set decoding.do_sample=true or remove it"
        assert fault == f"decoding.{name}={value} {expected}"

    @pytest.mark.parametrize("case", CANNOT_GO.values(), ids=CANNOT_GO)
    def test_what_cannot_go_together(self, case: tuple[Any, ...]) -> None:
        values, *lines = case
        found = faults(**values)
        assert list(found) == [line.replace("@", "decoding.") for line in lines]
        assert all(fault.count("decoding.") >= 2 for fault in found)
        assert not any(BARE_NAME.search(fault) for fault in found), "a name that can be typed as it is"

    @pytest.mark.parametrize(
        "values",
        [
            {"min_length": 5, "max_length": 4},
            {"min_new_tokens": 5, "max_new_tokens": 4},
            {"min_new_tokens": 5, "max_length": 4},
        ],
    )
    def test_crossed_lengths(self, values: dict[str, Any]) -> None:
        low, high = values
        assert faults(**values) == (f"decoding.{low}=5 is above decoding.{high}=4; must be at most that",)

    def test_every_fault_is_named_at_once(self) -> None:
        named = [
            fault.split("=")[0] for fault in faults(top_p=1.5, seed=-1, top_k=3, min_length=9, max_length=1)
        ]
        assert named == ["decoding.top_p", "decoding.seed", "decoding.top_k", "decoding.min_length"]

    def test_what_a_refused_value_would_contradict_is_no_news(self) -> None:
        assert faults(do_sample="yes", top_p=0.9) == ("decoding.do_sample='yes': must be true or false",)
        [fault] = faults(penalty_alpha=0.6, top_k=-1)
        assert fault.startswith("decoding.top_k=-1: must be")

    def test_the_likeliest_of_one_is_greedy(self) -> None:
        """As MindFormers' users ask for it."""
        assert DecodingParams(top_k=1).greedy
        assert DecodingParams(top_k=1, do_sample=True, temperature=0).greedy
        [fault] = faults(top_k=1, num_beams=2)
        assert fault.startswith("decoding.top_k=1 has no effect with decoding.do_sample=false;")

    def test_a_schema_that_is_none_says_why(self) -> None:
        [fault] = faults(json_schema="{")
        assert fault.startswith("decoding.json_schema='{': not valid JSON")
