"""Names of MindFormers' GPT2LMHeadModel (not in 1.9): queries, keys and values apart and transposed."""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, Sections, renamed, renamed_norm

_HF, _MF = "transformer.h.{layer}", "backbone.blocks.{layer}"


def dialect(options: Options) -> Dialect:
    """The rules; the model has no settings that change them. Its head is always the token embedding."""
    del options
    embeddings = [
        Rule(Form((f"transformer.{short}.weight",)), Form((f"backbone.embedding.{name}.embedding_table",)))
        for short, name in (("wte", "word_embedding"), ("wpe", "position_embedding"))
    ]
    return Dialect(
        (
            *embeddings,
            *renamed_norm("transformer.ln_f", "backbone.layernorm"),
            *renamed_norm(f"{_HF}.ln_1", f"{_MF}.layernorm1"),
            *renamed_norm(f"{_HF}.ln_2", f"{_MF}.layernorm2"),
            *_attention(),
            *renamed(
                [
                    (f"{_HF}.attn.c_proj", f"{_MF}.attention.projection"),
                    (f"{_HF}.mlp.c_fc", f"{_MF}.output.mapping"),
                    (f"{_HF}.mlp.c_proj", f"{_MF}.output.projection"),
                ],
                ("weight", "bias"),
            ),
        ),
        # causal masks: of old Hugging Face checkpoints, and what MindFormers' conversion made of them
        ("*.attn.bias", "*.attn.masked_bias", "*.attention.beta", "*.attention.masked_beta"),
    )


def _attention() -> list[Rule]:
    """c_attn is [inputs, outputs] (Conv1D), the three dense layers are [outputs, inputs]."""
    return [
        Rule(
            Form((f"{_HF}.attn.c_attn.{end}",), transposed=True),
            Form(tuple(f"{_MF}.attention.dense{number}.{end}" for number in (1, 2, 3))),
            Sections.QKV,
        )
        for end in ("weight", "bias")
    ]
