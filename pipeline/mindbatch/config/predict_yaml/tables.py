"""The tables of the keys of a predict YAML: files, ranks, device, training; the model; its adapter."""

from typing import Any, NoReturn

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.conversions import (
    NOTHING,
    PET_CONFIG,
    PET_NAME,
    Agreed,
    Entry,
    Facts,
    Sets,
    Unfit,
    WithoutEffect,
    is_positive,
    only,
)

TRAINING = "of training"
STRATEGIES = "layers are cut by their own rules"
LOADING = "a folder of weights is cut as it is loaded"
WHICH_MODEL = "config.json says which model it is"
NO_CODE = "code that is named in a file is never run"
TOKENIZER = "the tokenizer's folder says it"

UNREAD = dict.fromkeys(
    ("callbacks", "eval_callbacks", "eval_dataset", "eval_dataset_task", "lr_schedule", "metric")
    + ("monitor_config", "optimizer", "recompute_config", "runner_config", "runner_wrapper")
    + ("swap_config", "train_dataset", "train_dataset_task"),
    TRAINING,
)
"""Sections at the top that have no effect, whatever they hold."""

RUN: dict[str, Entry] = {
    "run_mode": to.only(("predict",), "only predict YAMLs are taken"),
    "use_legacy": Sets("model.provider", to.provider),
    "load_checkpoint": Sets("model.checkpoint_name_or_path", to.weights_folder),
    "pretrained_model_dir": Sets("model.checkpoint_name_or_path", to.model_folder),
    "load_ckpt_format": to.only(("safetensors", "ckpt", None, ""), "must be safetensors or ckpt"),
    "src_strategy_path_or_dir": to.source_strategy,
    "only_save_strategy": to.unless_asked(
        "strategy files are made by mindbatch layout model.provider=mindformers layout.dir=DIR"
    ),
    "input_data": to.unless_asked("give prompts, prompts_file or data.path"),
    "predict_batch_size": Sets("model.batch_size"),
    "register_path": to.unless_asked(NO_CODE),
    "trust_remote_code": to.unless_asked(NO_CODE),
    "seed": Sets("decoding.seed"),
    "trainer.type": to.only(
        ("CausalLanguageModelingTrainer",), "only CausalLanguageModelingTrainer: models of text"
    ),
    "use_parallel": to.only((True, False, None), "must be True or False"),
    "parallel_config.data_parallel": Sets("parallel.data_parallel", to.of_all_ranks),
    "parallel_config.model_parallel": Sets("parallel.model_parallel", to.of_all_ranks),
    "parallel_config.pipeline_stage": Sets("parallel.pipeline_stage", to.of_all_ranks),
    "parallel_config.expert_parallel": to.only(
        (1, None), "experts are cut by model_parallel only; set it to 1"
    ),
    "parallel_config.context_parallel": to.only((1, None), "sequences are not cut; set it to 1"),
    "parallel_config.vocab_emb_dp": Sets("layout.vocab_emb_dp", absent=STRATEGIES),
    "parallel.strategy_ckpt_load_file": to.unless_asked(
        "layers are cut by their own rules, and no strategy is read; remove it"
    ),
    "moe_config.expert_num": to.only(
        (1, None), "models with experts run with use_legacy: False, from their config.json"
    ),
    "context.device_target": Sets("runtime.device_target"),
    "context.device_id": to.device_id,
    "context.max_device_memory": Sets(
        "runtime.device_memory",
        to.device_memory,
        "the cache takes runtime.cache_memory, and weights what they need",
    ),
    "context.runtime_num_threads": Sets("runtime.num_threads"),
    "context.mode": to.only((0, 1, "0", "1", "GRAPH_MODE", "PYNATIVE_MODE"), "must be 0 or 1"),
}

IDLE: dict[str, str] = UNREAD | {
    "output_dir": "logs and strategy files are not written; results go to output.dir",
    "auto_trans_ckpt": LOADING,
    "transform_process_num": LOADING,
    "auto_map": NO_CODE,
    "profile": "nothing is profiled",
    "trainer.": WHICH_MODEL,
    "parallel_config.": TRAINING,
    "parallel.": STRATEGIES,
    "moe_config.": "no experts beside config.json's",
    "context.": "a setting of MindSpore's that MindBatch makes itself",
    "processor.auto_register": NO_CODE,
    "processor.tokenizer.auto_": NO_CODE,
    "processor.": TOKENIZER,
}
"""By what the names begin with, why keys without an entry have no effect; the first that fits counts."""


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
    "parallel_decoding": to.unless_asked(LOOKAHEAD),
    "parallel_decoding_params": to.unless_asked(LOOKAHEAD),
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
    "quant_config": to.unless_asked(QUANTISED),
    "quantization_config": to.unless_asked(QUANTISED),
    "quantization_bit": to.only((0, None), QUANTISED),
    "llm_backend": to.unless_asked("only the models of provider native or mindformers are run"),
    "return_hidden_states": to.unless_asked("only text is given"),
    "pre_seq_len": to.unless_asked("prefix tuning is not supported"),
    "prefix_projection": to.unless_asked("prefix tuning is not supported"),
    "auto_register": to.unless_asked(NO_CODE),
    "hidden_size_per_attention_head": to.only((None,), ONE_FORM),
    "activation_func": to.only(("GELU",), ONE_FORM),
    "layernorm_order": to.only(("post",), ONE_FORM),
    "use_final_layernorm": to.only((True,), ONE_FORM),
    "post_layernorm_residual": to.only((False, None), ONE_FORM),
    "use_moe": to.only((False, None), ONE_FORM),
    "expert_num": to.only((1, None), ONE_FORM),
}

MODEL: dict[str, Entry] = {
    "model.arch.type": to.model_class,
    "model.arch.auto_register": to.unless_asked(NO_CODE),
    "model.trust_remote_code": to.unless_asked(NO_CODE),
    **{f"{to.GENERATION_CONFIG}{name}": entry for name, entry in GENERATION.items()},
    **{f"{to.MODEL_CONFIG}{name}": entry for name, entry in (GENERATION | NETWORK).items()},
    "processor.tokenizer.trust_remote_code": to.unless_asked(NO_CODE),
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
"""As `IDLE`: among keys of the network those that config.json may have with another value."""


LORA, SLORA = "lora", "slora"
GIVE_IT = "lora.adapters='{NAME: PATH}' lora.default=NAME"
OF_ADAPTER = "the adapter's own files say it"


def _pet_type(value: Any, facts: Facts) -> str:
    """lora: the one adapter is every row's; slora has a list, and adapter_id names one."""
    if value == SLORA or value in NOTHING:
        raise Agreed
    if value != LORA:
        raise Unfit(f"only {LORA} and {SLORA} are supported")
    if "lora.adapters" in facts.above:
        raise WithoutEffect("lora.adapters is given")
    if facts.adapter is None:
        raise Unfit(
            "the adapter is looked for in load_checkpoint, its model in pretrained_model_dir; a checkpoint "
            f"of both is merged by tools/transform_ckpt_lora.py, or give {GIVE_IT}"
        )
    return PET_NAME


def _adapter_path(value: Any, facts: Facts) -> str:
    if value in NOTHING:
        raise Agreed
    if facts.value(f"{PET_CONFIG}pet_type") != SLORA:
        raise Unfit(f"is of pet_type: {SLORA}; for one adapter give {GIVE_IT}")
    return str(value)


def _adapter_id(value: Any, facts: Facts) -> str:
    if value in NOTHING:
        raise Agreed
    if facts.value(f"{PET_CONFIG}adapter_path") is None and "lora.adapters" not in facts.above:
        raise Unfit(f"there are no adapters without adapter_path in pet_config; give {GIVE_IT}")
    return str(value)


def _scaling_part(value: Any, facts: Facts) -> NoReturn:
    """lora_rank and lora_alpha: of lora their quotient goes with the adapter; slora's have their own."""
    if facts.value(f"{PET_CONFIG}pet_type") != LORA:
        raise WithoutEffect(OF_ADAPTER)
    if not (value is None or is_positive(value)):
        raise Unfit("must be a number above 0")
    raise Agreed


PET: dict[str, Entry] = {
    "adapter_id": Sets("lora.default", _adapter_id),
    f"{PET_CONFIG}pet_type": Sets("lora.default", _pet_type),
    f"{PET_CONFIG}adapter_path": Sets("lora.adapters", _adapter_path),
    f"{PET_CONFIG}lora_rank": _scaling_part,
    f"{PET_CONFIG}lora_alpha": _scaling_part,
    f"{PET_CONFIG}lora_extra_vocab_size": only(
        (0, None), "tokens that are added are not supported; set it to 0"
    ),
}

IDLE_PET: dict[str, str] = {
    f"{PET_CONFIG}lora_num": "lora.max_loaded says how many are in memory",
    **dict.fromkeys((f"{PET_CONFIG}lora_", f"{PET_CONFIG}freeze_"), TRAINING),
    PET_CONFIG: OF_ADAPTER,
}
"""As `IDLE`."""
