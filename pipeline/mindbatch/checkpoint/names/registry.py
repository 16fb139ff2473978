"""Model types that have MindFormers names, and the names that the tensors of a checkpoint have."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.names.dialect import (
    EXPERT,
    Dialect,
    Form,
    Heads,
    Options,
    Rule,
    Sections,
    known_names,
    renamed,
    renamed_norm,
)
from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture

MCORE_MODEL_TYPES = ("qwen3", "qwen3_moe")
_HF = "model.layers.{layer}"
_HF_BLOCK, _BLOCK = "transformer.h.{layer}", "backbone.blocks.{layer}"
_BOTH = ("weight", "bias")


def llama(options: Options) -> Dialect:
    """Names of LlamaForCausalLM, which runs Qwen2 and Mistral, too."""
    stored = "model.layers.{layer}"
    dense = {
        f"{_HF}.self_attn.o_proj": f"{stored}.attention.wo",
        f"{_HF}.mlp.down_proj": f"{stored}.feed_forward.w2",
    }
    fused: list[Rule] = []
    if options.qkv_concat:  # MindFormers has no bias on fused gates
        names = f"{stored}.attention.w_qkv", f"{stored}.feed_forward.w_gate_hidden"
        fused = _fused(*names, options, _BOTH)
    else:
        dense |= {f"{_HF}.self_attn.{which}_proj": f"{stored}.attention.w{which}" for which in "qkv"}
        dense[f"{_HF}.mlp.gate_proj"] = f"{stored}.feed_forward.w1"
        dense[f"{_HF}.mlp.up_proj"] = f"{stored}.feed_forward.w3"
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
            *renamed(dense.items(), _BOTH),
            *fused,
        ),
        ("*rotary_emb.inv_freq",),
    )


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
    separate_qkv = [f"{_HF}.self_attn.{which}_proj" for which in "qkv"]
    separate_gates = [f"{_HF}.mlp.{which}_proj" for which in ("gate", "up")]
    return [
        *_in_sections(separate_qkv, [qkv], Sections.QKV, ends, grouped=options.grouped),
        *_in_sections(separate_gates, [gates], Sections.PAIR, ("weight",), grouped=options.grouped),
    ]


def _in_sections(
    originals: Sequence[str],
    stored: Sequence[str],
    sections: Sections,
    ends: Sequence[str] = _BOTH,
    *,
    grouped: bool = False,
    transposed: bool = False,
) -> list[Rule]:
    """Rules for tensors of all sections, or of one each, on either side; every name gets each of the ends.

    transposed: the original ones are.
    """
    return [
        Rule(
            Form(tuple(f"{name}.{end}" for name in originals), transposed=transposed),
            Form(tuple(f"{name}.{end}" for name in stored), grouped),
            sections,
        )
        for end in ends
    ]


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
    attention, mlp = f"{layer}.self_attention", f"{layer}.mlp"
    qkv, gates = [f"{attention}.query_key_value"], [f"{mlp}.dense_h_to_4h"]
    own_qkv = qkv if options.qkv_concat else [f"{attention}.w{which}" for which in "qkv"]
    own_gates = gates if options.mlp_concat else [f"{mlp}.dense_left", f"{mlp}.dense_right"]
    return Dialect(
        (
            Rule(Form((f"{embedding}.word_embeddings.weight",)), Form((f"{embedding}.embedding_weight",))),
            *renamed((name, name) for name in kept),
            *renamed([(name, name) for name in dense], _BOTH),
            *_in_sections(qkv, own_qkv, Sections.QKV),
            *_in_sections(gates, own_gates, Sections.PAIR),
        ),
        ("*rotary_pos_emb.inv_freq",),
    )


def gpt2(options: Options) -> Dialect:
    """Names of GPT2LMHeadModel: queries, keys and values apart and transposed.

    The model has no settings that change them. Its head is always the token embedding.
    """
    del options
    # c_attn is [inputs, outputs] (Conv1D), the three dense layers are [outputs, inputs].
    fused, separate = f"{_HF_BLOCK}.attn.c_attn", [f"{_BLOCK}.attention.dense{n}" for n in (1, 2, 3)]
    return Dialect(
        (
            *_outside_layers({"wte": "embedding.word_embedding", "wpe": "embedding.position_embedding"}),
            *_norms(_HF_BLOCK, _BLOCK),
            *_in_sections([fused], separate, Sections.QKV, transposed=True),
            *renamed(_block_projections(_HF_BLOCK, _BLOCK).items(), _BOTH),
        ),
        # causal masks: of old Hugging Face checkpoints, and what MindFormers' conversion made of them
        ("*.attn.bias", "*.attn.masked_bias", "*.attention.beta", "*.attention.masked_beta"),
    )


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
            *_pangu_alpha_layer(_HF_BLOCK, _BLOCK),
            *_pangu_alpha_layer(f"transformer.h.{last}", "backbone.top_query_layer"),
        ),
        ("*.attn.bias", "*.attn.masked_bias"),  # causal masks
    )


def _pangu_alpha_layer(original: str, stored: str) -> list[Rule]:
    dense = [
        (f"{original}.attn.{which}_proj", f"{stored}.attention.dense{n}") for n, which in enumerate("qkv", 1)
    ]
    transposed = _block_projections(original, stored)
    return [
        *_norms(original, stored),
        *renamed(dense, _BOTH),
        *renamed(transposed.items(), ("bias",)),
        *(
            Rule(Form((f"{one}.weight",)), Form((f"{other}.weight",), transposed=True))
            for one, other in transposed.items()
        ),
    ]


def _block_projections(original: str, stored: str) -> dict[str, str]:
    return {
        f"{original}.attn.c_proj": f"{stored}.attention.projection",
        f"{original}.mlp.c_fc": f"{stored}.output.mapping",
        f"{original}.mlp.c_proj": f"{stored}.output.projection",
    }


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


_DIALECTS = {
    "chatglm": chatglm,
    "chatglm_6b": chatglm_6b,
    "gpt2": gpt2,
    "llama": llama,
    "mistral": llama,
    "pangu_alpha": pangu_alpha,
    "qwen2": llama,
}
NAMED_MODEL_TYPES = tuple(_DIALECTS)
_KINDS = (Options(), Options(qkv_concat=True))


def dialect(model_type: str, options: Options | None = None) -> Dialect:
    """The declaration of a model type.

    Raises:
        ConfigError: MindFormers' names of the type are not known here.
    """
    options = options or Options()
    known = MCORE_MODEL_TYPES if options.is_mcore else NAMED_MODEL_TYPES
    if model_type not in known:
        whose = "MindFormers' Mcore" if options.is_mcore else "MindFormers"
        has_others = model_type in MCORE_MODEL_TYPES
        others = "; target.names=mcore has those of its Mcore models" if has_others else ""
        raise ConfigError(
            f"{whose} names of model type {shown(model_type)} are not known; allowed: "
            f"{', '.join(known)}{did_you_mean(model_type, known)}{others}"
        )
    return mcore(options) if options.is_mcore else _DIALECTS[model_type](options)


def heads_of(arch: Architecture) -> Heads:
    experts = arch.experts.routing.experts if arch.experts else 0
    return Heads(arch.heads, arch.kv_heads, arch.head_dim, experts)


def has_mindformers_names(model_type: str, names: Collection[str]) -> bool:
    """True if more of the names are MindFormers' than Hugging Face's."""
    forms = _forms(model_type)
    if not forms:
        return False
    original = known_names(dialect(model_type, forms[0]), names, is_stored=False)
    stored = [known_names(dialect(model_type, options), names, is_stored=True) for options in forms]
    return max(map(len, stored)) > len(original)


def detected_options(model_type: str, names: Collection[str], options: Options) -> Options:
    """The options with the form that fits more of the names, which are MindFormers'."""
    forms = [
        replace(options, qkv_concat=form.qkv_concat, is_mcore=form.is_mcore) for form in _forms(model_type)
    ]
    return max(
        forms, key=lambda form: len(known_names(dialect(model_type, form), names, is_stored=True))
    )  # the first of equals


def _forms(model_type: str) -> list[Options]:
    older = [*_KINDS] if model_type in NAMED_MODEL_TYPES else []
    return older + ([Options(is_mcore=True)] if model_type in MCORE_MODEL_TYPES else [])


def has_fused_form(model_type: str) -> bool:
    """True if the model type has the option qkv_concat."""
    if model_type not in NAMED_MODEL_TYPES:
        return False
    plain, fused = (dialect(model_type, options) for options in _KINDS)
    return plain != fused
