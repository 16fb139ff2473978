"""Table of the keys below `model`, `generation_config` and `processor` of a predict YAML."""

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.entries import Checked, Entry, Sets
from mindbatch.config.predict_yaml.run_table import NO_CODE, TOKENIZER, TRAINING, WHICH_MODEL

PRECISION = "kernels choose it beside model.dtype"
QUANTISED = "quantised models are not supported; give the folder unquantised"
LOOKAHEAD = "use decoding.prompt_lookup_num_tokens in its place"
LONGEST = "model.seq_length is the longest prompt and output"
ONE_FORM = "no folder's network is so; remove it"

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
}

NETWORK: dict[str, Entry] = {
    "batch_size": Sets("model.batch_size"),
    "seq_length": Sets("model.seq_length"),
    "use_past": Sets("model.use_past"),
    "block_size": Sets("runtime.block_size"),
    "compute_dtype": Sets("model.dtype", to.float_type),
    "params_dtype": Sets("model.dtype", to.float_type),
    "param_init_type": Sets("model.dtype", to.float_type),
    "checkpoint_name_or_path": Sets("model.checkpoint_name_or_path", to.weights_folder),
    "qkv_concat": Sets("layout.qkv_concat", absent="a choice of kernels that changes no result"),
    "quant_config": Checked(to.unless_asked(QUANTISED)),
    "quantization_config": Checked(to.unless_asked(QUANTISED)),
    "quantization_bit": Checked(to.only((0, None), QUANTISED)),
    "llm_backend": Checked(to.unless_asked("only the models of provider native or mindformers are run")),
    "return_hidden_states": Checked(to.unless_asked("only text is given")),
    "pre_seq_len": Checked(to.unless_asked("prefix tuning is not supported")),
    "prefix_projection": Checked(to.unless_asked("prefix tuning is not supported")),
    "auto_register": Checked(to.unless_asked(NO_CODE)),
    "hidden_size_per_attention_head": Checked(to.only((None,), ONE_FORM)),
    "activation_func": Checked(to.only(("GELU",), ONE_FORM)),
    "layernorm_order": Checked(to.only(("post",), ONE_FORM)),
    "use_final_layernorm": Checked(to.only((True,), ONE_FORM)),
    "post_layernorm_residual": Checked(to.only((False, None), ONE_FORM)),
    "use_moe": Checked(to.only((False, None), ONE_FORM)),
    "expert_num": Checked(to.only((1, None), ONE_FORM)),
}

MODEL: dict[str, Entry] = {
    "model.arch.type": Checked(to.model_class),
    "model.arch.auto_register": Checked(to.unless_asked(NO_CODE)),
    "model.trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    **{f"{to.GENERATION_CONFIG}{name}": entry for name, entry in GENERATION.items()},
    **{f"{to.MODEL_CONFIG}{name}": entry for name, entry in (GENERATION | NETWORK).items()},
    "processor.tokenizer.trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    "processor.tokenizer.vocab_file": Sets("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.tokenizer_file": Sets("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.merges_file": Sets("model.tokenizer", to.folder_of_file),
}

IDLE_GENERATION: dict[str, str] = {
    "pad_token_id": "nothing is padded",
    "bos_token_id": TOKENIZER,
    "return_dict_in_generate": "output.format and decoding.logprobs say it",
    "output_": "output.format and decoding.logprobs say it",
}

IDLE_MODEL: dict[str, str] = {
    "model.type": WHICH_MODEL,
    **{f"{to.GENERATION_CONFIG}{name}": why for name, why in IDLE_GENERATION.items()},
    **{
        f"{to.MODEL_CONFIG}{name}": why
        for name, why in {
            **IDLE_GENERATION,
            "num_blocks": "the cache is given in bytes: runtime.cache_memory",
            "pretrained_model_dir": "pretrained_model_dir at the top says it",
            "auto_map": NO_CODE,
            "max_position_embedding": LONGEST,
            "n_positions": LONGEST,
            **dict.fromkeys(("type", "model_type", "architectures", "boost_model_type"), WHICH_MODEL),
            **dict.fromkeys(("apply_query_key_layer_scaling", "fp32_residual_connection"), PRECISION),
            **dict.fromkeys(("attention_softmax_in_fp32", "res_dtype", "residual_dtype"), PRECISION),
            **dict.fromkeys(("layernorm_compute_", "softmax_compute_", "rotary_dtype"), PRECISION),
            **dict.fromkeys(("attention_dropout", "attention_probs_dropout", "hidden_dropout"), TRAINING),
            **dict.fromkeys(("embedding_dropout", "embed_dropout", "emb_dropout", "drop_prob"), TRAINING),
            **dict.fromkeys(("initializer_range", "use_cache", "num_nextn_predict_layers"), TRAINING),
        }.items()
    },
}
"""As `run_table.IDLE`: among keys of the network those that config.json may have with another value."""
