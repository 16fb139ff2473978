"""Names of MindFormers' ChatGLM2ForConditionalGeneration: ChatGLM2, ChatGLM3, the first GLM4."""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, Sections, renamed

_LAYER = "transformer.encoder.layers.{layer}"
_BOTH = ("weight", "bias")


def dialect(options: Options) -> Dialect:
    """The rules, without use_rearrange_rope, which reorders the elements of each head."""
    kept = ["input_layernorm", "post_attention_layernorm"]
    dense = ["self_attention.dense", "mlp.dense_4h_to_h"]
    return Dialect(
        (
            Rule(
                Form(("transformer.embedding.word_embeddings.weight",)),
                Form(("transformer.embedding.embedding_weight",)),
            ),
            *renamed(
                (name, name) for name in ("transformer.encoder.final_layernorm", "transformer.output_layer")
            ),
            *renamed((f"{_LAYER}.{name}", f"{_LAYER}.{name}") for name in kept),
            *renamed([(f"{_LAYER}.{name}", f"{_LAYER}.{name}") for name in dense], _BOTH),
            *_layer(
                "self_attention", "query_key_value", ("wq", "wk", "wv"), Sections.QKV, options.qkv_concat
            ),
            *_layer("mlp", "dense_h_to_4h", ("dense_left", "dense_right"), Sections.PAIR, options.mlp_concat),
        ),
        ("*rotary_pos_emb.inv_freq",),
    )


def _layer(
    block: str, fused: str, separate: tuple[str, ...], sections: Sections, is_fused: bool
) -> list[Rule]:
    """Builds the rules from Hugging Face's fused tensors to MindFormers' fused or separate ones."""
    names = (fused,) if is_fused else separate
    return [
        Rule(
            Form((f"{_LAYER}.{block}.{fused}.{end}",)),
            Form(tuple(f"{_LAYER}.{block}.{name}.{end}" for name in names)),
            sections,
        )
        for end in _BOTH
    ]
