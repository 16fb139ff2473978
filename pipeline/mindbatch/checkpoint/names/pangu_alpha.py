"""Names of MindFormers' PanguAlphaHeadModel (not in 1.9): GPT-2's blocks, and the last layer apart from them.

Matrices of nn.Dense are [outputs, inputs], the others [inputs, outputs].
"""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, renamed, renamed_norm

_BLOCK = "backbone.blocks.{layer}"
_TOP = "backbone.top_query_layer"
_EMBEDDINGS = {
    "wte": "embedding.word_embedding",
    "wpe": "embedding.position_embedding",
    "wqe": "top_query_embedding",
}


def dialect(options: Options) -> Dialect:
    """The rules. The head is always the token embedding."""
    last = "{layer}" if options.num_layers is None else options.num_layers - 1
    embeddings = [
        Rule(Form((f"transformer.{short}.weight",)), Form((f"backbone.{name}.embedding_table",)))
        for short, name in _EMBEDDINGS.items()
    ]
    return Dialect(
        (
            *embeddings,
            *renamed_norm("transformer.ln_f", "backbone.layernorm"),
            *_layer("transformer.h.{layer}", _BLOCK),
            *_layer(f"transformer.h.{last}", _TOP),
        ),
        ("*.attn.bias", "*.attn.masked_bias"),  # causal masks
    )


def _layer(original: str, stored: str) -> list[Rule]:
    dense = [
        (f"{original}.attn.{which}_proj", f"{stored}.attention.dense{n}") for n, which in enumerate("qkv", 1)
    ]
    transposed = {
        f"{original}.attn.c_proj": f"{stored}.attention.projection",
        f"{original}.mlp.c_fc": f"{stored}.output.mapping",
        f"{original}.mlp.c_proj": f"{stored}.output.projection",
    }
    return [
        *renamed_norm(f"{original}.ln_1", f"{stored}.layernorm1"),
        *renamed_norm(f"{original}.ln_2", f"{stored}.layernorm2"),
        *renamed(dense, ("weight", "bias")),
        *renamed(transposed.items(), ("bias",)),
        *(
            Rule(Form((f"{one}.weight",)), Form((f"{other}.weight",), transposed=True))
            for one, other in transposed.items()
        ),
    ]
