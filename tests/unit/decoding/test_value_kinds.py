"""What each decoding parameter may be by itself."""

from typing import Any

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.io.errors import ConfigError


def faults(**values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        DecodingParams(**values)
    return caught.value.faults


class TestRanges:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("do_sample", 1),
            ("do_sample", "true"),
            ("temperature", -0.1),
            ("temperature", float("nan")),
            ("temperature", float("inf")),
            ("temperature", 1e-40),
            ("temperature", "0.5"),
            ("temperature", True),
            ("top_k", -1),
            ("top_k", 5.0),
            ("top_k", True),
            ("top_p", 0.0),
            ("top_p", 1.5),
            ("top_p", float("nan")),
            ("top_p", 10**400),
            ("min_p", -0.1),
            ("min_p", 1.1),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", -1.0),
            ("max_length", 0),
            ("max_new_tokens", 0),
            ("min_length", -1),
            ("min_length", None),
            ("min_new_tokens", -1),
            ("num_return_sequences", 0),
            ("num_return_sequences", 2**16 + 1),
            ("top_h", 0),
            ("top_h", 1.1),
            ("top_n_sigma", -1),
            ("top_n_sigma", float("nan")),
            ("typical_p", 0.0),
            ("typical_p", 2),
            ("epsilon_cutoff", 1),
            ("epsilon_cutoff", -0.1),
            ("eta_cutoff", 1.0),
            ("num_beams", 0),
            ("num_beams", 2**12 + 1),
            ("num_beam_groups", 0),
            ("diversity_penalty", -0.5),
            ("diversity_penalty", float("inf")),
            ("length_penalty", 21),
            ("length_penalty", float("nan")),
            ("early_stopping", "always"),
            ("early_stopping", 1),
            ("early_stopping", None),
            ("penalty_alpha", 1.1),
            ("penalty_alpha", -0.1),
            ("best_of", 0),
            ("best_of", 2**16 + 1),
            ("num_assistant_tokens", -1),
            ("num_assistant_tokens", None),
            ("prompt_lookup_num_tokens", 1025),
            ("max_matching_ngram_size", 0),
            ("encoder_repetition_penalty", 0.0),
            ("frequency_penalty", 2.1),
            ("presence_penalty", -2.1),
            ("presence_penalty", "1"),
            ("no_repeat_ngram_size", -1),
            ("encoder_no_repeat_ngram_size", 1.5),
            ("bad_words_ids", [[]]),
            ("bad_words_ids", [5]),
            ("bad_words_ids", [[1, -1]]),
            ("bad_words_ids", [["a"]]),
            ("sequence_bias", {5: 1.0}),
            ("sequence_bias", [[[1], 2], [[1], 3]]),
            ("sequence_bias", [[[], 2]]),
            ("sequence_bias", [[[1], float("inf")]]),
            ("sequence_bias", [[[1], True]]),
            ("sequence_bias", [[[1], 2, 3]]),
            ("sequence_bias", "x"),
            ("logit_bias", {5: 101}),
            ("logit_bias", {5: float("nan")}),
            ("logit_bias", {"five": 1}),
            ("logit_bias", {"-5": 1}),
            ("logit_bias", {5: 1, "5": 2}),
            ("logit_bias", {True: 1}),
            ("logit_bias", [[[1], 2]]),
            ("logit_bias", [5]),
            ("logit_bias", {"9" * 5000: 1}),
            ("suppress_tokens", [-1]),
            ("begin_suppress_tokens", "5"),
            ("forced_bos_token_id", -1),
            ("forced_bos_token_id", [5]),
            ("forced_eos_token_id", []),
            ("forced_eos_token_id", True),
            ("exponential_decay_length_penalty", 5),
            ("exponential_decay_length_penalty", [5]),
            ("exponential_decay_length_penalty", [-1, 1.1]),
            ("exponential_decay_length_penalty", [1, 0.0]),
            ("exponential_decay_length_penalty", [1.5, 1.1]),
            ("renormalize_logits", 1),
            ("prefix_allowed_tokens_fn", "print"),
            ("regex", ""),
            ("regex", 5),
            ("seed", -1),
            ("seed", 2**64),
            ("stop", ""),
            ("stop", ["a", ""]),
            ("stop", [1]),
            ("stop", None),
            ("eos_token_id", -1),
            ("eos_token_id", [1, -2]),
            ("eos_token_id", [True]),
            ("eos_token_id", "2"),
            ("logprobs", -1),
            ("logprobs", 101),
            ("prompt_logprobs", 1.0),
            ("skip_special_tokens", None),
        ],
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
