"""The token ids that decoding parameters name, which must be of the model's vocabulary."""

from collections.abc import Iterator

from mindbatch.decoding.params import DecodingParams


def token_ids_in(params: DecodingParams) -> Iterator[tuple[str, int]]:
    """Each token id in `params`, after the name of the parameter that holds it."""
    if params.forced_bos_token_id is not None:
        yield "forced_bos_token_id", params.forced_bos_token_id
    for name in ("eos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        for token in getattr(params, name) or ():
            yield name, token
    for words in params.bad_words_ids:
        for token in words:
            yield "bad_words_ids", token
    for sequence, _ in params.sequence_bias:
        for token in sequence:
            yield "sequence_bias", token
    for token, _ in params.logit_bias:
        yield "logit_bias", token
