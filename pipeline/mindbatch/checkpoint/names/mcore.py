"""Names of MindFormers' Mcore models as they are trained: Qwen3 and its mixtures, their matrices fused.

Source: `weight_converters` of mindformers 1.9 and 2.0, models/qwen3/utils.py and models/qwen3_moe/utils.py.
"""

from __future__ import annotations

from mindbatch.checkpoint.names.dialect import EXPERT, Dialect, Form, Options, Rule, Sections, renamed

MODEL_TYPES = ("qwen3", "qwen3_moe")
_HF, _MF = "model.layers.{layer}", "decoder.layers.{layer}"


def dialect(options: Options) -> Dialect:
    """Makes the rules between Hugging Face's names and MindFormers'."""
    attention = Rule(
        Form(tuple(f"{_HF}.self_attn.{which}_proj.weight" for which in "qkv")),
        Form((f"{_MF}.self_attention.linear_qkv.weight",), options.order),
        Sections.QKV,
    )
    gates = Rule(
        Form(tuple(f"{_HF}.mlp.{which}_proj.weight" for which in ("gate", "up"))),
        Form((f"{_MF}.mlp.linear_fc1.weight",), options.order),
        Sections.PAIR,
    )
    others = renamed(
        [
            ("model.embed_tokens", "embedding.word_embeddings"),
            ("model.norm", "decoder.final_layernorm"),
            ("lm_head", "output_layer"),
            (f"{_HF}.input_layernorm", f"{_MF}.input_layernorm"),
            (f"{_HF}.post_attention_layernorm", f"{_MF}.pre_mlp_layernorm"),
            (f"{_HF}.self_attn.q_norm", f"{_MF}.self_attention.q_layernorm"),
            (f"{_HF}.self_attn.k_norm", f"{_MF}.self_attention.k_layernorm"),
            (f"{_HF}.self_attn.o_proj", f"{_MF}.self_attention.linear_proj"),
            (f"{_HF}.mlp.down_proj", f"{_MF}.mlp.linear_fc2"),
        ]
    )
    return Dialect((attention, gates, *_experts(), *others))


def _experts() -> list[Rule]:
    """Those of a mixture: gate and up of all experts are one matrix, their other matrices another."""
    expert = f"{_HF}.mlp.experts.{EXPERT}"
    gate_up = Form((f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"))
    return [
        Rule(gate_up, Form((f"{_MF}.mlp.experts.weight1",)), Sections.PAIR, is_stacked=True),
        Rule(Form((f"{expert}.down_proj.weight",)), Form((f"{_MF}.mlp.experts.weight2",)), is_stacked=True),
        *renamed([(f"{_HF}.mlp.gate", f"{_MF}.mlp.router")]),
    ]
