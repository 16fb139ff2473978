"""Names of models that MindFormers 1.9 has no more: GPT-2, PanGu-Alpha, ChatGLM-6B."""

from collections.abc import Mapping

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, Sections, renamed, renamed_norm

_HF, _BLOCK = "transformer.h.{layer}", "backbone.blocks.{layer}"
_BOTH = ("weight", "bias")


def gpt2(options: Options) -> Dialect:
    """Names of GPT2LMHeadModel: queries, keys and values apart and transposed.

    The model has no settings that change them. Its head is always the token embedding.
    """
    del options
    dense = [
        (f"{_HF}.attn.c_proj", f"{_BLOCK}.attention.projection"),
        (f"{_HF}.mlp.c_fc", f"{_BLOCK}.output.mapping"),
        (f"{_HF}.mlp.c_proj", f"{_BLOCK}.output.projection"),
    ]
    return Dialect(
        (
            *_outside_layers({"wte": "embedding.word_embedding", "wpe": "embedding.position_embedding"}),
            *_norms(_HF, _BLOCK),
            *_gpt2_attention(),
            *renamed(dense, _BOTH),
        ),
        # causal masks: of old Hugging Face checkpoints, and what MindFormers' conversion made of them
        ("*.attn.bias", "*.attn.masked_bias", "*.attention.beta", "*.attention.masked_beta"),
    )


def _gpt2_attention() -> list[Rule]:
    """c_attn is [inputs, outputs] (Conv1D), the three dense layers are [outputs, inputs]."""
    return [
        Rule(
            Form((f"{_HF}.attn.c_attn.{end}",), transposed=True),
            Form(tuple(f"{_BLOCK}.attention.dense{number}.{end}" for number in (1, 2, 3))),
            Sections.QKV,
        )
        for end in _BOTH
    ]


def pangu_alpha(options: Options) -> Dialect:
    """Names of PanguAlphaHeadModel: GPT-2's blocks, and the last layer apart from them.

    Matrices of nn.Dense are [outputs, inputs], the others [inputs, outputs]. The head is always the token
    embedding.
    """
    last = "{layer}" if options.num_layers is None else options.num_layers - 1
    embeddings = {
        "wte": "embedding.word_embedding",
        "wpe": "embedding.position_embedding",
        "wqe": "top_query_embedding",
    }
    return Dialect(
        (
            *_outside_layers(embeddings),
            *_pangu_alpha_layer(_HF, _BLOCK),
            *_pangu_alpha_layer(f"transformer.h.{last}", "backbone.top_query_layer"),
        ),
        ("*.attn.bias", "*.attn.masked_bias"),  # causal masks
    )


def _pangu_alpha_layer(original: str, stored: str) -> list[Rule]:
    dense = [
        (f"{original}.attn.{which}_proj", f"{stored}.attention.dense{n}") for n, which in enumerate("qkv", 1)
    ]
    transposed = {
        f"{original}.attn.c_proj": f"{stored}.attention.projection",
        f"{original}.mlp.c_fc": f"{stored}.output.mapping",
        f"{original}.mlp.c_proj": f"{stored}.output.projection",
    }
    return [
        *_norms(original, stored),
        *renamed(dense, _BOTH),
        *renamed(transposed.items(), ("bias",)),
        *(
            Rule(Form((f"{one}.weight",)), Form((f"{other}.weight",), transposed=True))
            for one, other in transposed.items()
        ),
    ]


def _outside_layers(embeddings: Mapping[str, str]) -> list[Rule]:
    """Rules for embeddings, by the end of their original names, and for the last norm."""
    tables = [
        Rule(Form((f"transformer.{short}.weight",)), Form((f"backbone.{name}.embedding_table",)))
        for short, name in embeddings.items()
    ]
    return [*tables, *renamed_norm("transformer.ln_f", "backbone.layernorm")]


def _norms(original: str, stored: str) -> list[Rule]:
    names = [(f"{original}.ln_{number}", f"{stored}.layernorm{number}") for number in (1, 2)]
    return [rule for pair in names for rule in renamed_norm(*pair)]


def chatglm_6b(options: Options) -> Dialect:
    """Names of GLMForPreTraining, whose matrices are as in its folder and whose settings change none."""
    del options
    words, layer = "transformer.word_embeddings", "transformer.layers.{layer}"
    norms = (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "transformer.final_layernorm")
    linear = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    return Dialect(
        (
            Rule(Form((f"{words}.weight",)), Form((f"{words}.embedding_table",))),
            *renamed([("lm_head", "lm_head")]),
            *(rule for name in norms for rule in renamed_norm(name, name)),
            *renamed([(f"{layer}.{name}", f"{layer}.{name}") for name in linear], _BOTH),
        ),
        ("*rotary_emb.inv_freq",),
        has_own_head=True,
    )
