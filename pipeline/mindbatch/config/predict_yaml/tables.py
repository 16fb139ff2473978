"""Lists the keys of predict YAMLs: what each one sets, requires, or why it has no effect."""

from typing import Any

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.conversions import (
    KEPT,
    NOTHING,
    PET_CONFIG,
    PET_NAME,
    KeyRule,
    MapsTo,
    PredictYaml,
    Verdict,
    is_positive,
    no_effect,
    only,
    rejected,
)

TRAINING = "of training"
STRATEGIES = "each layer type has one way of sharding"
LOADING = "weights are sharded as they are loaded"
WHICH_MODEL = "config.json has the type of the model"
NO_CODE = "code named in a file is never run"
TOKENIZER = "it is read from the tokenizer's folder"

UNREAD = dict.fromkeys(
    ("callbacks", "eval_callbacks", "eval_dataset", "eval_dataset_task", "lr_schedule", "metric")
    + ("lr_scheduler", "monitor", "monitor_config", "optimizer", "profiler", "recompute", "recompute_comm")
    + ("recompute_config", "runner_config", "runner_wrapper", "swap", "swap_config", "train_dataset")
    + ("train_dataset_task",),
    TRAINING,
)
"""Top-level sections that are not read."""

RUN: dict[str, KeyRule] = {
    "run_mode": to.only(("predict",), "only predict YAMLs are supported"),
    "use_legacy": MapsTo("model.provider", to.provider),
    "load_checkpoint": MapsTo("model.checkpoint_name_or_path", to.weights_folder),
    "pretrained_model_dir": MapsTo("model.checkpoint_name_or_path", to.model_folder),
    "load_ckpt_format": to.only(("safetensors", "ckpt", None, ""), "must be safetensors or ckpt"),
    "src_strategy_path_or_dir": to.source_strategy,
    "only_save_strategy": to.not_set(
        "to write strategy files: mindbatch layout model.provider=mindformers layout.dir=DIR"
    ),
    "input_data": to.not_set("use prompts, prompts_file or data.path instead"),
    "predict_batch_size": MapsTo("model.batch_size"),
    "register_path": to.not_set(NO_CODE),
    "trust_remote_code": to.not_set(NO_CODE),
    "seed": MapsTo("decoding.seed"),
    "trainer.type": to.only(
        ("CausalLanguageModelingTrainer",), "only CausalLanguageModelingTrainer is supported"
    ),
    "use_parallel": to.only((True, False, None), "must be True or False"),
    "parallel_config.data_parallel": MapsTo("parallel.data_parallel", to.num_ranks),
    "parallel_config.model_parallel": MapsTo("parallel.model_parallel", to.num_ranks),
    "parallel_config.pipeline_stage": MapsTo("parallel.pipeline_stage", to.num_ranks),
    "parallel_config.expert_parallel": to.only(
        (1, None), "experts are sharded by model_parallel only; set it to 1"
    ),
    "parallel_config.context_parallel": to.only((1, None), "sequences are not sharded; set it to 1"),
    "parallel_config.vocab_emb_dp": MapsTo("layout.vocab_emb_dp", absent=STRATEGIES),
    "parallel.strategy_ckpt_load_file": to.not_set(
        "strategies are not read: each layer type has one way of sharding; remove it"
    ),
    "moe_config.expert_num": to.only(
        (1, None), "models with experts run with use_legacy: False, from their config.json"
    ),
    "context.device_target": MapsTo("runtime.device_target"),
    "context.device_id": to.device_id,
    "context.max_device_memory": MapsTo(
        "runtime.device_memory",
        to.device_memory,
        "runtime.cache_memory sets the size of the cache",
    ),
    "context.runtime_num_threads": MapsTo("runtime.num_threads"),
    "context.mode": to.only((0, 1, "0", "1", "GRAPH_MODE", "PYNATIVE_MODE"), "must be 0 or 1"),
}

IDLE: dict[str, str] = UNREAD | {
    "output_dir": "there are no logs and strategy files; output.dir is for results",
    "auto_trans_ckpt": LOADING,
    "transform_process_num": LOADING,
    "auto_map": NO_CODE,
    "profile": "profiling is not supported",
    "trainer.": WHICH_MODEL,
    "parallel_config.": TRAINING,
    "parallel.": STRATEGIES,
    "moe_config.": "config.json describes the experts",
    "context.": "a setting of MindSpore that MindBatch sets itself",
    "processor.auto_register": NO_CODE,
    "processor.tokenizer.auto_": NO_CODE,
    "processor.": TOKENIZER,
}
"""Reasons why keys without an entry have no effect, by prefix of the key; the first match is used."""


PRECISION = "the kernels choose it by model.dtype"
QUANTISED = "config.json describes how a folder is quantised (docs/models.md#quantised-folders); remove it"
LOOKAHEAD = "use decoding.prompt_lookup_num_tokens instead"
LONGEST = "model.seq_length bounds prompt and output"
ONE_FORM = "no supported model has it; remove it"

GENERATION: dict[str, KeyRule] = {
    "do_sample": MapsTo("decoding.do_sample", to.strategy_choice),
    "temperature": MapsTo("decoding.temperature", to.sampling_value),
    "top_k": MapsTo("decoding.top_k", to.sampling_value),
    "top_p": MapsTo("decoding.top_p", to.sampling_value),
    "repetition_penalty": MapsTo("decoding.repetition_penalty"),
    "encoder_repetition_penalty": MapsTo("decoding.encoder_repetition_penalty"),
    "renormalize_logits": MapsTo("decoding.renormalize_logits"),
    "num_beams": MapsTo("decoding.num_beams", to.strategy_choice),
    "max_new_tokens": MapsTo("decoding.max_new_tokens"),
    "max_length": MapsTo("decoding.max_length", to.max_length),
    "max_decode_length": MapsTo("decoding.max_length", to.max_length),
    "min_length": MapsTo("decoding.min_length"),
    "min_new_tokens": MapsTo("decoding.min_new_tokens"),
    "eos_token_id": MapsTo("decoding.eos_token_id"),
    "parallel_decoding": to.not_set(LOOKAHEAD),
    "parallel_decoding_params": to.not_set(LOOKAHEAD),
}

NETWORK: dict[str, KeyRule] = {
    "batch_size": MapsTo("model.batch_size"),
    "seq_length": MapsTo("model.seq_length"),
    "use_past": MapsTo("model.use_past"),
    "block_size": MapsTo("runtime.block_size"),
    "compute_dtype": MapsTo("model.dtype", to.float_type),
    "params_dtype": MapsTo("model.dtype", to.float_type),
    "param_init_type": MapsTo("model.dtype", to.float_type),
    "checkpoint_name_or_path": MapsTo("model.checkpoint_name_or_path", to.weights_folder),
    "qkv_concat": MapsTo("layout.qkv_concat", absent="it chooses a kernel and changes no result"),
    "quant_config": to.not_set(QUANTISED),
    "quantization_config": to.not_set(QUANTISED),
    "quantization_bit": to.only((0, None), QUANTISED),
    "llm_backend": to.not_set("only models of provider native or mindformers are supported"),
    "return_hidden_states": to.not_set("only text is returned"),
    "pre_seq_len": to.not_set("prefix tuning is not supported"),
    "prefix_projection": to.not_set("prefix tuning is not supported"),
    "auto_register": to.not_set(NO_CODE),
    "hidden_size_per_attention_head": to.only((None,), ONE_FORM),
    "activation_func": to.only(("GELU",), ONE_FORM),
    "layernorm_order": to.only(("post",), ONE_FORM),
    "use_final_layernorm": to.only((True,), ONE_FORM),
    "post_layernorm_residual": to.only((False, None), ONE_FORM),
    "use_moe": to.only((False, None), ONE_FORM),
    "expert_num": to.only((1, None), ONE_FORM),
}

MODEL: dict[str, KeyRule] = {
    "model.arch.type": to.model_class,
    "model.arch.auto_register": to.not_set(NO_CODE),
    "model.trust_remote_code": to.not_set(NO_CODE),
    **{f"{to.GENERATION_CONFIG}{name}": entry for name, entry in GENERATION.items()},
    **{f"{to.MODEL_CONFIG}{name}": entry for name, entry in (GENERATION | NETWORK).items()},
    "processor.tokenizer.trust_remote_code": to.not_set(NO_CODE),
    "processor.tokenizer.vocab_file": MapsTo("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.tokenizer_file": MapsTo("model.tokenizer", to.folder_of_file),
    "processor.tokenizer.merges_file": MapsTo("model.tokenizer", to.folder_of_file),
}

IDLE_GENERATION: dict[str, str] = {
    "pad_token_id": "nothing is padded",
    "bos_token_id": TOKENIZER,
    "return_dict_in_generate": "output.format and decoding.logprobs set it",
    "output_": "output.format and decoding.logprobs set it",
}

IDLE_MODEL: dict[str, str] = {
    "model.type": WHICH_MODEL,
    **{f"{to.GENERATION_CONFIG}{name}": why for name, why in IDLE_GENERATION.items()},
    **{
        f"{to.MODEL_CONFIG}{name}": why
        for name, why in {
            **IDLE_GENERATION,
            "num_blocks": "runtime.cache_memory sets the size of the cache",
            "pretrained_model_dir": "pretrained_model_dir is read at the top level",
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
"""Extends `IDLE` by keys of the model; its values may differ from those in config.json."""


LORA, SLORA = "lora", "slora"
ADAPTER_KEYS = "lora.adapters='{NAME: PATH}' lora.default=NAME"
OF_ADAPTER = "it is read from the adapter's files"


def _pet_type(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    """Makes the adapter of `pet_type: lora` the default; adapter_id names one of slora's list."""
    if value == SLORA or value in NOTHING:
        return KEPT
    if value != LORA:
        return rejected(f"only {LORA} and {SLORA} are supported")
    if "lora.adapters" in predict_yaml.overrides:
        return no_effect("lora.adapters overrides it")
    if predict_yaml.adapter is None:
        return rejected(
            "needs the adapter in load_checkpoint and its model in pretrained_model_dir; merge a checkpoint "
            f"of both with tools/transform_ckpt_lora.py, or use {ADAPTER_KEYS}"
        )
    return PET_NAME


def _adapter_path(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    if value in NOTHING:
        return KEPT
    if predict_yaml.value(f"{PET_CONFIG}pet_type") != SLORA:
        return rejected(f"needs pet_type: {SLORA}; for one adapter use {ADAPTER_KEYS}")
    return str(value)


def _adapter_id(value: Any, predict_yaml: PredictYaml) -> str | Verdict:
    if value in NOTHING:
        return KEPT
    if (
        predict_yaml.value(f"{PET_CONFIG}adapter_path") is None
        and "lora.adapters" not in predict_yaml.overrides
    ):
        return rejected(f"needs adapter_path in pet_config; or use {ADAPTER_KEYS}")
    return str(value)


def _scaling_part(value: Any, predict_yaml: PredictYaml) -> Verdict:
    """Checks lora_rank or lora_alpha, whose quotient is the scaling of the adapter of `pet_type: lora`."""
    if predict_yaml.value(f"{PET_CONFIG}pet_type") != LORA:
        return no_effect(OF_ADAPTER)
    if not (value is None or is_positive(value)):
        return rejected("must be a number above 0")
    return KEPT


PET: dict[str, KeyRule] = {
    "adapter_id": MapsTo("lora.default", _adapter_id),
    f"{PET_CONFIG}pet_type": MapsTo("lora.default", _pet_type),
    f"{PET_CONFIG}adapter_path": MapsTo("lora.adapters", _adapter_path),
    f"{PET_CONFIG}lora_rank": _scaling_part,
    f"{PET_CONFIG}lora_alpha": _scaling_part,
    f"{PET_CONFIG}lora_extra_vocab_size": only((0, None), "added tokens are not supported; set it to 0"),
}

IDLE_PET: dict[str, str] = {
    f"{PET_CONFIG}lora_num": "lora.max_loaded bounds the adapters in memory",
    **dict.fromkeys((f"{PET_CONFIG}lora_", f"{PET_CONFIG}freeze_"), TRAINING),
    PET_CONFIG: OF_ADAPTER,
}
"""Extends `IDLE` by keys of pet_config."""
