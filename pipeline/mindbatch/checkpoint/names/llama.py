"""Names of MindFormers' LlamaForCausalLM, which runs Qwen2 and Mistral, too."""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import Dialect, Form, Options, Rule, Sections, renamed

_HF, _MF = "model.layers.{layer}", "model.layers.{layer}"
_BOTH = ("weight", "bias")


def dialect(options: Options) -> Dialect:
    """Makes the rules between Hugging Face's names and MindFormers'."""
    return Dialect(
        (
            Rule(Form(("model.embed_tokens.weight",)), Form(("model.tok_embeddings.embedding_weight",))),
            *renamed([("model.norm", "model.norm_out"), ("lm_head", "lm_head")]),
            *renamed(
                [
                    (f"{_HF}.input_layernorm", f"{_MF}.attention_norm"),
                    (f"{_HF}.post_attention_layernorm", f"{_MF}.ffn_norm"),
                ]
            ),
            *renamed([(f"{_HF}.self_attn.o_proj", f"{_MF}.attention.wo")], _BOTH),
            *renamed([(f"{_HF}.mlp.down_proj", f"{_MF}.feed_forward.w2")], _BOTH),
            *(_fused(options) if options.qkv_concat else _separate()),
        ),
        ("*rotary_emb.inv_freq",),
    )


def _separate() -> list[Rule]:
    attention = zip("qkv", ("wq", "wk", "wv"), strict=True)
    return renamed(
        [
            *((f"{_HF}.self_attn.{which}_proj", f"{_MF}.attention.{name}") for which, name in attention),
            (f"{_HF}.mlp.gate_proj", f"{_MF}.feed_forward.w1"),
            (f"{_HF}.mlp.up_proj", f"{_MF}.feed_forward.w3"),
        ],
        _BOTH,
    )


def _fused(options: Options) -> list[Rule]:
    """MindFormers has no bias on fused gates."""
    attention = [
        Rule(
            Form(tuple(f"{_HF}.self_attn.{which}_proj.{end}" for which in "qkv")),
            Form((f"{_MF}.attention.w_qkv.{end}",), options.order),
            Sections.QKV,
        )
        for end in _BOTH
    ]
    gates = Rule(
        Form(tuple(f"{_HF}.mlp.{which}_proj.weight" for which in ("gate", "up"))),
        Form((f"{_MF}.feed_forward.w_gate_hidden.weight",), options.order),
        Sections.PAIR,
    )
    return [*attention, gates]
