"""Names of MindFormers' GLMForPreTraining (not in 1.9): ChatGLM-6B, whose matrices are as in its folder."""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, renamed, renamed_norm

_LAYER = "transformer.layers.{layer}"
_NORMS = (f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm", "transformer.final_layernorm")
_LINEAR = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")


def dialect(options: Options) -> Dialect:
    """The rules; the model has no settings that change them."""
    del options
    words = "transformer.word_embeddings"
    norms = [rule for name in _NORMS for rule in renamed_norm(name, name)]
    return Dialect(
        (
            Rule(Form((f"{words}.weight",)), Form((f"{words}.embedding_table",))),
            *renamed([("lm_head", "lm_head")]),
            *norms,
            *renamed([(f"{_LAYER}.{name}", f"{_LAYER}.{name}") for name in _LINEAR], ("weight", "bias")),
        ),
        ("*rotary_emb.inv_freq",),
        has_own_head=True,
    )
