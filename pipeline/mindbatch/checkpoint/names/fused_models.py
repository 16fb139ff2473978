"""Names of MindFormers' models whose attention and gates may be fused: Llama, ChatGLM2, the Mcore models."""

from collections.abc import Sequence

from mindbatch.checkpoint.names.dialect import EXPERT, Dialect, Form, Options, Rule, Sections, renamed

MCORE_MODEL_TYPES = ("qwen3", "qwen3_moe")
_HF = "model.layers.{layer}"
_BOTH = ("weight", "bias")


def llama(options: Options) -> Dialect:
    """Names of LlamaForCausalLM, which runs Qwen2 and Mistral, too."""
    stored = "model.layers.{layer}"
    return Dialect(
        (
            Rule(Form(("model.embed_tokens.weight",)), Form(("model.tok_embeddings.embedding_weight",))),
            *renamed(
                [
                    ("model.norm", "model.norm_out"),
                    ("lm_head", "lm_head"),
                    (f"{_HF}.input_layernorm", f"{stored}.attention_norm"),
                    (f"{_HF}.post_attention_layernorm", f"{stored}.ffn_norm"),
                ]
            ),
            *renamed([(f"{_HF}.self_attn.o_proj", f"{stored}.attention.wo")], _BOTH),
            *renamed([(f"{_HF}.mlp.down_proj", f"{stored}.feed_forward.w2")], _BOTH),
            *(_llama_fused(stored, options) if options.qkv_concat else _llama_separate(stored)),
        ),
        ("*rotary_emb.inv_freq",),
    )


def _llama_separate(stored: str) -> list[Rule]:
    attention = zip("qkv", ("wq", "wk", "wv"), strict=True)
    return renamed(
        [
            *((f"{_HF}.self_attn.{which}_proj", f"{stored}.attention.{name}") for which, name in attention),
            (f"{_HF}.mlp.gate_proj", f"{stored}.feed_forward.w1"),
            (f"{_HF}.mlp.up_proj", f"{stored}.feed_forward.w3"),
        ],
        _BOTH,
    )


def _llama_fused(stored: str, options: Options) -> list[Rule]:
    """MindFormers has no bias on fused gates."""
    names = f"{stored}.attention.w_qkv", f"{stored}.feed_forward.w_gate_hidden"
    return _fused(*names, options, _BOTH)


def mcore(options: Options) -> Dialect:
    """Names of the Mcore models as they are trained: Qwen3 and its mixtures, their matrices fused.

    Source: `weight_converters` of mindformers 1.9 and 2.0, models/qwen3/utils.py and
    models/qwen3_moe/utils.py.
    """
    stored = "decoder.layers.{layer}"
    others = renamed(
        [
            ("model.embed_tokens", "embedding.word_embeddings"),
            ("model.norm", "decoder.final_layernorm"),
            ("lm_head", "output_layer"),
            (f"{_HF}.input_layernorm", f"{stored}.input_layernorm"),
            (f"{_HF}.post_attention_layernorm", f"{stored}.pre_mlp_layernorm"),
            (f"{_HF}.self_attn.q_norm", f"{stored}.self_attention.q_layernorm"),
            (f"{_HF}.self_attn.k_norm", f"{stored}.self_attention.k_layernorm"),
            (f"{_HF}.self_attn.o_proj", f"{stored}.self_attention.linear_proj"),
            (f"{_HF}.mlp.down_proj", f"{stored}.mlp.linear_fc2"),
        ]
    )
    fused = _fused(f"{stored}.self_attention.linear_qkv", f"{stored}.mlp.linear_fc1", options, ("weight",))
    return Dialect((*fused, *_mcore_experts(f"{stored}.mlp"), *others))


def _mcore_experts(stored: str) -> list[Rule]:
    """Those of a mixture: gate and up of all experts are one matrix, their other matrices another."""
    expert = f"{_HF}.mlp.experts.{EXPERT}"
    gate_up = Form((f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"))
    return [
        Rule(gate_up, Form((f"{stored}.experts.weight1",)), Sections.PAIR, is_stacked=True),
        Rule(Form((f"{expert}.down_proj.weight",)), Form((f"{stored}.experts.weight2",)), is_stacked=True),
        *renamed([(f"{_HF}.mlp.gate", f"{stored}.router")]),
    ]


def _fused(qkv: str, gates: str, options: Options, ends: Sequence[str]) -> list[Rule]:
    """Rules from separate projections to one of attention, with each of the ends, and one of the gates."""
    attention = [
        Rule(
            Form(tuple(f"{_HF}.self_attn.{which}_proj.{end}" for which in "qkv")),
            Form((f"{qkv}.{end}",), options.order),
            Sections.QKV,
        )
        for end in ends
    ]
    gate_up = Form(tuple(f"{_HF}.mlp.{which}_proj.weight" for which in ("gate", "up")))
    return [*attention, Rule(gate_up, Form((f"{gates}.weight",), options.order), Sections.PAIR)]


def chatglm(options: Options) -> Dialect:
    """Names of ChatGLM2ForConditionalGeneration: ChatGLM2, ChatGLM3, the first GLM4.

    Without use_rearrange_rope, which reorders the elements of each head.
    """
    layer = "transformer.encoder.layers.{layer}"
    embedding = "transformer.embedding"
    kept = [
        *(f"transformer.{name}" for name in ("encoder.final_layernorm", "output_layer")),
        *(f"{layer}.{name}" for name in ("input_layernorm", "post_attention_layernorm")),
    ]
    dense = [f"{layer}.{name}" for name in ("self_attention.dense", "mlp.dense_4h_to_h")]
    qkv = ("wq", "wk", "wv") if not options.qkv_concat else ("query_key_value",)
    gates = ("dense_left", "dense_right") if not options.mlp_concat else ("dense_h_to_4h",)
    return Dialect(
        (
            Rule(Form((f"{embedding}.word_embeddings.weight",)), Form((f"{embedding}.embedding_weight",))),
            *renamed((name, name) for name in kept),
            *renamed([(name, name) for name in dense], _BOTH),
            *_divided(f"{layer}.self_attention", "query_key_value", qkv, Sections.QKV),
            *_divided(f"{layer}.mlp", "dense_h_to_4h", gates, Sections.PAIR),
        ),
        ("*rotary_pos_emb.inv_freq",),
    )


def _divided(block: str, fused: str, names: Sequence[str], sections: Sections) -> list[Rule]:
    """Builds the rules from Hugging Face's fused tensors to MindFormers' fused or separate ones."""
    return [
        Rule(
            Form((f"{block}.{fused}.{end}",)),
            Form(tuple(f"{block}.{name}.{end}" for name in names)),
            sections,
        )
        for end in _BOTH
    ]
