"""The token ids that decoding parameters name."""

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.token_ids import token_ids_in


def test_none_by_default() -> None:
    assert list(token_ids_in(DecodingParams())) == []
    assert list(token_ids_in(DecodingParams(eos_token_id=()))) == []


def test_each_with_the_parameter_that_names_it() -> None:
    params = DecodingParams(
        eos_token_id=(1, 2),
        forced_bos_token_id=0,
        forced_eos_token_id=(3,),
        suppress_tokens=(4,),
        bad_words_ids=((5,), (6, 7)),
        sequence_bias=(((8, 9), 1.0),),
        logit_bias=((10, -1.0),),
    )
    named = {
        ("forced_bos_token_id", 0),
        ("eos_token_id", 1),
        ("eos_token_id", 2),
        ("forced_eos_token_id", 3),
        ("suppress_tokens", 4),
        ("bad_words_ids", 5),
        ("bad_words_ids", 6),
        ("bad_words_ids", 7),
        ("sequence_bias", 8),
        ("sequence_bias", 9),
        ("logit_bias", 10),
    }
    assert set(token_ids_in(params)) == named
    assert list(token_ids_in(DecodingParams(begin_suppress_tokens=(11,)))) == [("begin_suppress_tokens", 11)]
