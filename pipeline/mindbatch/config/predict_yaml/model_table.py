"""Table of the keys below `model`, `generation_config` and `processor` of a predict YAML."""

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.entries import Checked, Entry, Ignored, Only, Same, Sets, ignored
from mindbatch.config.predict_yaml.run_table import NO_CODE, NO_EXPERTS, PRECISION, TRAINING, WHICH_MODEL

SHAPES = "the weights say it"
KERNELS = "a choice of kernels that changes no result"
NO_PADDING = "nothing is padded"
TOKENIZER = "the tokenizer's folder says it"
QUANTISED = "quantised models are not supported; give the folder unquantised"
LOOKAHEAD = "use decoding.prompt_lookup_num_tokens in its place"
OUTPUT = "output.format and decoding.logprobs say it"
LONGEST = "model.seq_length is the longest prompt and output"
EITHER = (True, False)
ONE_FORM = "no folder's network is so; remove it"
_GELU = {"gelu": ("gelu", "gelu_new", "gelu_pytorch_tanh"), "fast_gelu": ("quick_gelu",), "silu": ("swish",)}

GENERATION: dict[str, Entry] = {
    "do_sample": Sets("decoding.do_sample", to.samples),
    "temperature": Sets("decoding.temperature", to.of_sampling),
    "top_k": Sets("decoding.top_k", to.of_sampling),
    "top_p": Sets("decoding.top_p", to.of_sampling),
    "repetition_penalty": Sets("decoding.repetition_penalty"),
    "encoder_repetition_penalty": Sets("decoding.encoder_repetition_penalty"),
    "renormalize_logits": Sets("decoding.renormalize_logits"),
    "num_beams": Sets("decoding.num_beams", to.samples),
    "max_new_tokens": Sets("decoding.max_new_tokens"),
    "max_length": Sets("decoding.max_length", to.longest),
    "max_decode_length": Sets("decoding.max_length", to.longest),
    "min_length": Sets("decoding.min_length"),
    "min_new_tokens": Sets("decoding.min_new_tokens"),
    "eos_token_id": Sets("decoding.eos_token_id"),
    "parallel_decoding": Checked(to.unless_asked(LOOKAHEAD)),
    "parallel_decoding_params": Checked(to.unless_asked(LOOKAHEAD)),
    **ignored(NO_PADDING, "pad_token_id"),
    **ignored(TOKENIZER, "bos_token_id"),
    **ignored("of MindFormers' lookahead decoding", "window_size", "level", "guess_set_size"),
    **ignored(OUTPUT, "return_dict_in_generate", "output_scores", "output_logits"),
}

RUNNING: dict[str, Entry] = {
    "batch_size": Sets("model.batch_size"),
    "seq_length": Sets("model.seq_length"),
    "use_past": Sets("model.use_past"),
    "block_size": Sets("runtime.block_size"),
    "num_blocks": Ignored("the cache is given in bytes: runtime.cache_memory"),
    "compute_dtype": Sets("model.dtype", to.float_type),
    "params_dtype": Sets("model.dtype", to.float_type),
    "param_init_type": Sets("model.dtype", to.float_type),
    "checkpoint_name_or_path": Sets("model.checkpoint_name_or_path", to.weights_folder),
    "qkv_concat": Sets("layout.qkv_concat", absent=KERNELS),
    **ignored(PRECISION, "layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype"),
    **ignored(PRECISION, "layernorm_compute_type", "softmax_compute_type", "residual_dtype"),
    **ignored(PRECISION, "embedding_init_type", "attention_softmax_in_fp32", "fp32_residual_connection"),
    **ignored(PRECISION, "apply_query_key_layer_scaling", "moe_router_dtype", "router_dense_type"),
    **ignored("graphs are compiled for buckets of tokens", "is_dynamic"),
    **ignored("prompts are always computed in chunks", "chunk_prefill"),
    **ignored(KERNELS, "use_flash_attention", "use_prompt_flash_attention", "use_incre_flash_attention"),
    **ignored(KERNELS, "mlp_concat", "use_rope_slice", "fused_rms_norm", "fused_norm", "use_fused_mla"),
    **ignored(KERNELS, "rmsnorm_compute_2d", "moe_router_fusion", "apply_rope_fusion", "input_layout"),
    **ignored(KERNELS, "bias_swiglu_fusion", "mla_qkv_concat", "moe_grouped_gemm", "moe_permute_fusion"),
    **ignored(KERNELS, "use_contiguous_weight_layout_attention", "use_interleaved_weight_layout_mlp"),
    **ignored(KERNELS, "use_ring_attention", "use_attn_mask_compression", "use_eod_attn_mask_compression"),
    **ignored(KERNELS, "sparse_mode", "use_fused_ops_topkrouter", "use_alltoall", "bias_dropout_fusion"),
    **ignored(KERNELS, "disable_lazy_inline", "rotary_cos_format", "dispatch_global_max_bs"),
    **ignored(KERNELS, "use_past_shard", "ffn_concat", "use_mla_pre", "need_nz"),
    **ignored(KERNELS, "is_enhanced_encoder", "is_sample_acceleration"),
    **ignored(PRECISION, "res_dtype"),
    **ignored(TRAINING, "emb_dropout_prob", "embed_dropout_prob", "attention_dropout_prob"),
    **ignored(TRAINING, "hidden_dropout", "attention_dropout", "hidden_dropout_rate", "hidden_dropout_prob"),
    **ignored(TRAINING, "attention_dropout_rate", "attention_probs_dropout_prob", "embedding_dropout_prob"),
    **ignored(TRAINING, "init_method_std", "initializer_range", "fp16_lm_cross_entropy", "ignore_token_id"),
    **ignored(TRAINING, "offset", "fine_grain_interleave", "pp_interleave_num", "parallel_optimizer"),
    **ignored(NO_EXPERTS, "per_token_num_experts_chosen"),
    **ignored(TRAINING, "calculate_per_token_loss", "input_sliced_sig", "drop_prob", "print_separate_loss"),
    **ignored(TRAINING, "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_token_drop_policy", "use_eod_reset"),
    **ignored(TRAINING, "mtp_num_layers", "num_nextn_predict_layers", "moe_expert_capacity_factor"),
    **ignored(TRAINING, "moe_router_load_balancing_type", "moe_router_bias_update_rate", "use_cache"),
    **ignored(NO_CODE, "auto_map"),
    **ignored(WHICH_MODEL, "type", "model_type", "architectures", "boost_model_type"),
    "quant_config": Checked(to.unless_asked(QUANTISED)),
    "quantization_config": Checked(to.unless_asked(QUANTISED)),
    "quantization_bit": Only((0, None), QUANTISED),
    "llm_backend": Checked(to.unless_asked("only the models of provider native or mindformers are run")),
    "return_hidden_states": Checked(to.unless_asked("only text is given")),
    "pre_seq_len": Checked(to.unless_asked("prefix tuning is not supported")),
    "prefix_projection": Checked(to.unless_asked("prefix tuning is not supported")),
    "auto_register": Checked(to.unless_asked(NO_CODE)),
    "pretrained_model_dir": Ignored("pretrained_model_dir at the top says it"),
}

_HEADS = ("num_attention_heads", "num_heads", "n_head")
_GROUPS = ("num_key_value_heads", "multi_query_group_num", *_HEADS)
_EPSILON = ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon", "layer_norm_eps")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")

ARCHITECTURE: dict[str, Entry] = {
    **ignored(SHAPES, "multiple_of", "ffn_dim_multiplier", "expand_ratio", "rotary_percent"),
    **ignored("config.json says how positions are scaled", "pretrain_seqlen"),
    **ignored(LONGEST, "max_position_embedding", "max_position_embeddings", "n_positions"),
    "hidden_size": Same(("hidden_size", "n_embd")),
    "num_layers": Same(("num_hidden_layers", "num_layers", "n_layer")),
    "num_hidden_layers": Same(("num_hidden_layers", "num_layers", "n_layer")),
    "num_heads": Same(_HEADS),
    "num_attention_heads": Same(_HEADS),
    "n_kv_heads": Same(_GROUPS, neutral=(None,)),
    "num_query_groups": Same(_GROUPS, neutral=(None,)),
    "num_key_value_heads": Same(_GROUPS, neutral=(None,)),
    "multi_query_group_num": Same(_GROUPS),
    "vocab_size": Same(("vocab_size", "padded_vocab_size")),
    "padded_vocab_size": Same(("padded_vocab_size", "vocab_size")),
    "intermediate_size": Same(
        ("intermediate_size", "ffn_hidden_size", "n_inner"), neutral=(None,), by_weights=True
    ),
    "ffn_hidden_size": Same(
        ("ffn_hidden_size", "intermediate_size", "n_inner"), neutral=(None,), by_weights=True
    ),
    "inner_hidden_size": Same(("inner_hidden_size",), neutral=(None,), by_weights=True),
    "hidden_size_per_attention_head": Only((None,), ONE_FORM),
    "kv_channels": Same(("kv_channels", "head_dim")),
    "head_dim": Same(("head_dim", "kv_channels")),
    "rms_norm_eps": Same(_EPSILON),
    "layernorm_epsilon": Same(_EPSILON),
    "theta": Same(("rope_theta",), neutral=(10000,)),
    "rope_theta": Same(("rope_theta",), neutral=(10000,)),
    "rotary_base": Same(("rope_theta",), neutral=(10000,)),
    "rope_ratio": Same(("rope_ratio",), neutral=(1,)),
    "extend_method": Checked(to.rope_extension),
    "scaling_factor": Checked(to.rope_factor),
    "rotary_scaling_factor": Checked(to.rope_factor),
    "rope_scaling": Checked(to.rope_factor),
    "hidden_act": Same(("hidden_act", "activation_function"), alike=_GELU),
    "activation_func": Only(("GELU",), ONE_FORM),
    "layernorm_order": Only(("post",), ONE_FORM),
    "use_final_layernorm": Only((True,), ONE_FORM),
    "post_layernorm_residual": Only((False, None), ONE_FORM),
    "position_encoding_2d": Same(("position_encoding_2d",)),
    "mask_token_id": Same(("mask_token_id",)),
    "gmask_token_id": Same(("gmask_token_id",)),
    "use_moe": Only((False, None), ONE_FORM),
    "expert_num": Only((1, None), ONE_FORM),
    "tie_word_embeddings": Same(("tie_word_embeddings",), neutral=EITHER),
    "qkv_has_bias": Same(("attention_bias", "add_qkv_bias"), neutral=EITHER),
    "add_qkv_bias": Same(("attention_bias", "add_qkv_bias"), neutral=EITHER),
    "attention_bias": Same(("attention_bias",), neutral=EITHER),
    "attn_proj_has_bias": Same(("attn_proj_has_bias",), neutral=EITHER),
    "out_proj_has_bias": Same(("out_proj_has_bias",), neutral=EITHER),
    "mlp_has_bias": Same(("mlp_bias",), neutral=EITHER),
    "add_bias_linear": Same(("add_bias_linear", "mlp_bias"), neutral=EITHER),
    "num_moe_experts": Same(_EXPERTS, neutral=(None,)),
    "num_experts": Same(_EXPERTS),
    "n_routed_experts": Same(_EXPERTS),
    "moe_router_topk": Same(("num_experts_per_tok",)),
    "num_experts_per_tok": Same(("num_experts_per_tok",)),
    "moe_ffn_hidden_size": Same(("moe_intermediate_size",)),
    "moe_intermediate_size": Same(("moe_intermediate_size",)),
    "moe_router_num_groups": Same(("n_group",), neutral=(None,)),
    "n_group": Same(("n_group",), neutral=(None,)),
    "moe_router_group_topk": Same(("topk_group",), neutral=(None,)),
    "topk_group": Same(("topk_group",), neutral=(None,)),
    "moe_router_topk_scaling_factor": Same(("routed_scaling_factor",), neutral=(None, 1)),
    "routed_scaling_factor": Same(("routed_scaling_factor",), neutral=(None, 1)),
    "shared_expert_num": Same(("n_shared_experts",), neutral=(None, 0)),
    "n_shared_experts": Same(("n_shared_experts",), neutral=(None, 0)),
    "norm_topk_prob": Same(("norm_topk_prob",)),
    "first_k_dense_replace": Same(("first_k_dense_replace",), neutral=(None, 0)),
    "q_lora_rank": Same(("q_lora_rank",)),
    "kv_lora_rank": Same(("kv_lora_rank",)),
    "qk_head_dim": Same(("qk_nope_head_dim",)),
    "qk_nope_head_dim": Same(("qk_nope_head_dim",)),
    "qk_pos_emb_head_dim": Same(("qk_rope_head_dim",)),
    "qk_rope_head_dim": Same(("qk_rope_head_dim",)),
    "v_head_dim": Same(("v_head_dim",)),
    "partial_rotary_factor": Same(("partial_rotary_factor",), neutral=(None, 1)),
    "sliding_window": Same(("sliding_window",), neutral=(None,)),
    "use_sliding_window": Same(("use_sliding_window",), neutral=(False,)),
    "use_qk_norm": Same(("use_qk_norm",), neutral=EITHER),
    **{
        name: Same((name,), neutral=neutral)
        for name, neutral in {
            "rmsnorm": (True,),
            "apply_residual_connection_post_layernorm": (False,),
            "post_layer_norm": (True,),
            "multi_query_attention": EITHER,
            "gated_linear_unit": EITHER,
            "qk_layernorm": EITHER,
            "multi_latent_attention": EITHER,
        }.items()
    },
}

MODEL: dict[str, Entry] = {
    "model.arch.type": Checked(to.model_class),
    "model.arch.auto_register": Checked(to.unless_asked(NO_CODE)),
    "model.type": Ignored(WHICH_MODEL),
    "model.trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    **{
        f"{section}{name}": entry
        for section in (to.GENERATION_CONFIG, to.MODEL_CONFIG)
        for name, entry in GENERATION.items()
    },
    **{f"{to.MODEL_CONFIG}{name}": entry for name, entry in (RUNNING | ARCHITECTURE).items()},
}

PROCESSOR: dict[str, Entry] = {
    "processor.type": Ignored(TOKENIZER),
    "processor.return_tensors": Ignored("prompts go to the model without it"),
    "processor.auto_register": Ignored(NO_CODE),
    "processor.tokenizer.auto_register": Ignored(NO_CODE),
    "processor.tokenizer.auto_map": Ignored(NO_CODE),
    "processor.tokenizer.trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    "processor.tokenizer.vocab_file": Sets("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.tokenizer_file": Sets("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.merges_file": Sets("model.tokenizer", to.folder_of_file),
    **{
        f"processor.tokenizer.{name}": Ignored(TOKENIZER)
        for name in ("type", "bos_token", "eos_token", "pad_token", "unk_token", "end_token", "mask_token")
        + ("gmask_token", "sep_token", "cls_token", "add_bos_token", "add_eos_token", "chat_template")
        + ("additional_special_tokens", "model_max_length", "padding_side", "add_prefix_space", "errors")
        + ("clean_up_tokenization_spaces", "use_fast", "max_length", "add_special_tokens", "dropout")
    },
}
