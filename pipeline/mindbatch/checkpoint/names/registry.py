"""Model types that have MindFormers names, and the names that the tensors of a checkpoint have."""

import re
from collections.abc import Collection
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture
from mindbatch.checkpoint.error_lines import did_you_mean, shown
from mindbatch.checkpoint.names.dialect import (
    EXPERT,
    Dialect,
    Form,
    Heads,
    Options,
    Rule,
    Sections,
    known_names,
)
from mindbatch.io.errors import ConfigError

MCORE_MODEL_TYPES = ("qwen3", "qwen3_moe")

_LAYER = re.compile(r"^L\b")
_ENDS = {
    "weight": ((".weight", ".weight"),),
    "bias": ((".bias", ".bias"),),
    "norm": ((".weight", ".gamma"), (".bias", ".beta")),
}


def _rules(table: str, original: str = "", stored: str = "", *, grouped: bool = False) -> list[Rule]:
    """Rules of a table with a line for each: names of Hugging Face = names of MindFormers : words.

    original, stored: the names of a layer, for which L stands. grouped: tensors of several sections are.
    Words: weight, bias: ends of the names, with a rule for each; norm: both, for which MindFormers has gamma
    and beta; qkv, pair: as Sections; stacked: as of Rule; conv1d, transposed: the matrices of Hugging Face,
    of MindFormers, are [inputs, outputs].
    """
    rules: list[Rule] = []
    for line in table.strip().splitlines():
        names, _, text = line.partition(" : ")
        originals, own = names.split(" = ")
        words = text.split()
        sections = next((Sections[word.upper()] for word in words if word in ("qkv", "pair")), Sections.ONE)
        is_stacked = "stacked" in words
        is_grouped = grouped and sections is not Sections.ONE and not is_stacked
        for end, own_end in [pair for word in words for pair in _ENDS.get(word, ())] or [("", "")]:
            form = Form(_full_names(originals, original, end), transposed="conv1d" in words)
            own_form = Form(_full_names(own, stored, own_end), is_grouped, "transposed" in words)
            rules.append(Rule(form, own_form, sections, is_stacked))
    return rules


def _full_names(names: str, layer: str, end: str) -> tuple[str, ...]:
    return tuple(_LAYER.sub(layer, name) + end for name in names.split())


_LLAMA = """
model.embed_tokens.weight = model.tok_embeddings.embedding_weight
model.norm = model.norm_out : weight
lm_head = lm_head : weight
L.input_layernorm = L.attention_norm : weight
L.post_attention_layernorm = L.ffn_norm : weight
L.self_attn.o_proj = L.attention.wo : weight bias
L.mlp.down_proj = L.feed_forward.w2 : weight bias
"""
_LLAMA_SEPARATE = """
L.self_attn.q_proj = L.attention.wq : weight bias
L.self_attn.k_proj = L.attention.wk : weight bias
L.self_attn.v_proj = L.attention.wv : weight bias
L.mlp.gate_proj = L.feed_forward.w1 : weight bias
L.mlp.up_proj = L.feed_forward.w3 : weight bias
"""
# MindFormers has no bias on fused gates.
_LLAMA_FUSED = """
L.self_attn.q_proj L.self_attn.k_proj L.self_attn.v_proj = L.attention.w_qkv : weight bias qkv
L.mlp.gate_proj L.mlp.up_proj = L.feed_forward.w_gate_hidden : weight pair
"""


def llama(options: Options) -> Dialect:
    """Names of LlamaForCausalLM, which runs Qwen2 and Mistral, too."""
    table = _LLAMA + (_LLAMA_FUSED if options.qkv_concat else _LLAMA_SEPARATE).lstrip()
    layer = "model.layers.{layer}"
    return Dialect(tuple(_rules(table, layer, layer, grouped=options.grouped)), ("*rotary_emb.inv_freq",))


# Of a mixture, gate and up of all experts are one matrix, their other matrices another.
_MCORE = """
L.self_attn.q_proj L.self_attn.k_proj L.self_attn.v_proj = L.self_attention.linear_qkv : weight qkv
L.mlp.gate_proj L.mlp.up_proj = L.mlp.linear_fc1 : weight pair
EXPERT.gate_proj.weight EXPERT.up_proj.weight = L.mlp.experts.weight1 : pair stacked
EXPERT.down_proj.weight = L.mlp.experts.weight2 : stacked
L.mlp.gate = L.mlp.router : weight
model.embed_tokens = embedding.word_embeddings : weight
model.norm = decoder.final_layernorm : weight
lm_head = output_layer : weight
L.input_layernorm = L.input_layernorm : weight
L.post_attention_layernorm = L.pre_mlp_layernorm : weight
L.self_attn.q_norm = L.self_attention.q_layernorm : weight
L.self_attn.k_norm = L.self_attention.k_layernorm : weight
L.self_attn.o_proj = L.self_attention.linear_proj : weight
L.mlp.down_proj = L.mlp.linear_fc2 : weight
""".replace("EXPERT", f"L.mlp.experts.{EXPERT}")


def mcore(options: Options) -> Dialect:
    """Names of the Mcore models as they are trained: Qwen3 and its mixtures, their matrices fused.

    Source: `weight_converters` of mindformers 1.9 and 2.0, models/qwen3/utils.py and
    models/qwen3_moe/utils.py.
    """
    layers = "model.layers.{layer}", "decoder.layers.{layer}"
    return Dialect(tuple(_rules(_MCORE, *layers, grouped=options.grouped)))


_CHATGLM = """
transformer.embedding.word_embeddings.weight = transformer.embedding.embedding_weight
transformer.encoder.final_layernorm = transformer.encoder.final_layernorm : weight
transformer.output_layer = transformer.output_layer : weight
L.input_layernorm = L.input_layernorm : weight
L.post_attention_layernorm = L.post_attention_layernorm : weight
L.self_attention.dense = L.self_attention.dense : weight bias
L.mlp.dense_4h_to_h = L.mlp.dense_4h_to_h : weight bias
L.self_attention.query_key_value = QKV : weight bias qkv
L.mlp.dense_h_to_4h = L.mlp.dense_h_to_4h : weight bias pair
"""


def chatglm(options: Options) -> Dialect:
    """Names of ChatGLM2ForConditionalGeneration: ChatGLM2, ChatGLM3, the first GLM4.

    Without use_rearrange_rope, which reorders the elements of each head, and with mlp_concat.
    """
    separate = "L.self_attention.wq L.self_attention.wk L.self_attention.wv"
    qkv = "L.self_attention.query_key_value" if options.qkv_concat else separate
    layer = "transformer.encoder.layers.{layer}"
    return Dialect(tuple(_rules(_CHATGLM.replace("QKV", qkv), layer, layer)), ("*rotary_pos_emb.inv_freq",))


# c_attn is [inputs, outputs] (Conv1D), the three dense layers are [outputs, inputs].
_GPT2 = """
transformer.wte.weight = backbone.embedding.word_embedding.embedding_table
transformer.wpe.weight = backbone.embedding.position_embedding.embedding_table
transformer.ln_f = backbone.layernorm : norm
L.ln_1 = L.layernorm1 : norm
L.ln_2 = L.layernorm2 : norm
L.attn.c_attn = L.attention.dense1 L.attention.dense2 L.attention.dense3 : weight bias qkv conv1d
L.attn.c_proj = L.attention.projection : weight bias
L.mlp.c_fc = L.output.mapping : weight bias
L.mlp.c_proj = L.output.projection : weight bias
"""
_GPT2_LAYERS = "transformer.h.{layer}", "backbone.blocks.{layer}"


def gpt2(options: Options) -> Dialect:
    """Names of GPT2LMHeadModel: queries, keys and values apart and transposed.

    The model has no settings that change them. Its head is always the token embedding.
    """
    del options
    # causal masks: of old Hugging Face checkpoints, and what MindFormers' conversion made of them
    masks = ("*.attn.bias", "*.attn.masked_bias", "*.attention.beta", "*.attention.masked_beta")
    return Dialect(tuple(_rules(_GPT2, *_GPT2_LAYERS)), masks)


_PANGU_ALPHA = """
transformer.wte.weight = backbone.embedding.word_embedding.embedding_table
transformer.wpe.weight = backbone.embedding.position_embedding.embedding_table
transformer.wqe.weight = backbone.top_query_embedding.embedding_table
transformer.ln_f = backbone.layernorm : norm
"""
_PANGU_ALPHA_LAYER = """
L.ln_1 = L.layernorm1 : norm
L.ln_2 = L.layernorm2 : norm
L.attn.q_proj = L.attention.dense1 : weight bias
L.attn.k_proj = L.attention.dense2 : weight bias
L.attn.v_proj = L.attention.dense3 : weight bias
L.attn.c_proj = L.attention.projection : bias
L.mlp.c_fc = L.output.mapping : bias
L.mlp.c_proj = L.output.projection : bias
L.attn.c_proj = L.attention.projection : weight transposed
L.mlp.c_fc = L.output.mapping : weight transposed
L.mlp.c_proj = L.output.projection : weight transposed
"""


def pangu_alpha(options: Options) -> Dialect:
    """Names of PanguAlphaHeadModel: GPT-2's blocks, and the last layer apart from them.

    Matrices of nn.Dense are [outputs, inputs], the others [inputs, outputs]. The head is always the token
    embedding.
    """
    last = "{layer}" if options.num_layers is None else options.num_layers - 1
    rules = [
        *_rules(_PANGU_ALPHA),
        *_rules(_PANGU_ALPHA_LAYER, *_GPT2_LAYERS),
        *_rules(_PANGU_ALPHA_LAYER, f"transformer.h.{last}", "backbone.top_query_layer"),
    ]
    return Dialect(tuple(rules), ("*.attn.bias", "*.attn.masked_bias"))  # causal masks


_CHATGLM_6B = """
transformer.word_embeddings.weight = transformer.word_embeddings.embedding_table
lm_head = lm_head : weight
L.input_layernorm = L.input_layernorm : norm
L.post_attention_layernorm = L.post_attention_layernorm : norm
transformer.final_layernorm = transformer.final_layernorm : norm
L.attention.query_key_value = L.attention.query_key_value : weight bias
L.attention.dense = L.attention.dense : weight bias
L.mlp.dense_h_to_4h = L.mlp.dense_h_to_4h : weight bias
L.mlp.dense_4h_to_h = L.mlp.dense_4h_to_h : weight bias
"""


def chatglm_6b(options: Options) -> Dialect:
    """Names of GLMForPreTraining, whose matrices are as in its folder and whose settings change none."""
    del options
    layer = "transformer.layers.{layer}"
    rules = tuple(_rules(_CHATGLM_6B, layer, layer))
    return Dialect(rules, ("*rotary_emb.inv_freq",), has_own_head=True)


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
