"""Keys of config.json that never change what the network computes for a prompt, by who writes them."""

from collections.abc import Set
from itertools import chain

# fmt: off
_BASE = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _auto_class _commit_hash
    _experts_implementation _flash_attn_2_enabled _from_model_config _model_name_or_path _name_or_path
    _num_labels architectures attn_implementation auto_map chunk_size_feed_forward cross_attention_hidden_size
    dtype finetuning_task gradient_checkpointing id2label is_composition is_decoder label2id
    model_type name_or_path num_labels output_attentions output_hidden_states output_past output_router_logits
    output_scores prefix problem_type return_dict return_dict_in_generate task_specific_params tf_legacy_loss
    tie_encoder_decoder tokenizer_class tokenizer_name torch_dtype torchscript transformers_version
    use_bfloat16 use_cache use_return_dict xla_device
"""  # transformers' PretrainedConfig, of every release
_GENERATION = """
    bos_token bos_token_id cache_config cache_implementation chat_template decoder_start_token_id eos_token
    eos_token_id guidance_scale max_time pad_token pad_token_id remove_invalid_values sep_token_id
    stop_strings unk_token unk_token_id
"""  # besides the decoding parameters that are ours too
_TRAINING = """
    activation_dropout attention_dropout attention_probs_dropout_prob attn_pdrop aux_loss_alpha
    aux_loss_coef classifier_dropout classifier_dropout_prob dropout dropout_rate embd_pdrop embedding_dropout
    ffn_dropout gradient_accumulation_steps gradient_checkpointing_kwargs group_size_ratio hidden_dropout
    hidden_dropout_prob init_device init_method init_std initializer_factor initializer_range
    label_smoothing layerdrop learning_rate liger_kernel_config loss_type lr_scheduler_type max_grad_norm
    neftune_noise_alpha num_train_epochs predict_special_tokens pretraining_tp recompute recompute_granularity
    resid_dropout resid_pdrop router_aux_loss_coef seed sequence_parallel training_args training_precision
    unsloth_fixed unsloth_version use_fused_cross_entropy use_fused_rms_norm use_fused_rope use_liger_kernel
    use_reentrant use_recompute use_unsloth use_unsloth_gradient_checkpointing warmup_steps weight_decay
    z_loss_coeff
"""  # trainers: transformers, trl, peft, unsloth, axolotl, LLaMA-Factory, liger, deepspeed, paddle
_KERNELS = """
    enable_flash_attn flash_attention flash_attn flash_attn_2_enabled fused_attention
    pad_vocab_size_multiple_of pad_vocab_size_to_multiple_of use_eager_attention use_flash_attention
    use_flash_attention_2 use_flash_attn use_flash_attn_2 use_flashattn use_fused_ops
    use_memory_efficient_attention use_sdpa use_xformers
"""  # which implementation computes it
_SERVING = """
    export_model_type is_llama_config max_model_len max_seq_len max_seq_length max_sequence_length
    model_max_length model_name neuron onnx openvino optimum_version paddlenlp_version
    tensor_parallel_degree tokenizer_model_max_length tokenizer_padding_side tokenizer_path tp_size
    transformers.js_config virtual_pp_degree
"""  # transformers.js, onnx and optimum, vllm, text-generation-inference; mlx writes none but `quantization`
_ABOUT = """
    author base_model base_model_name_or_path commit_hash created_at dataset datasets date description
    fine_tuned_from finetuned_from internal_version language library_name license merge_method
    mergekit_version model_creator model_description name pipeline_tag revision tags task version
"""
# fmt: on

_KNOWN = frozenset(
    chain(*(text.split() for text in (_BASE, _GENERATION, _TRAINING, _KERNELS, _SERVING, _ABOUT)))
)


def without_irrelevant(names: Set[str]) -> set[str]:
    """The keys that are not known to change nothing."""
    left = {*names} - _KNOWN
    if left:
        from mindbatch.decoding.params import PARAMETERS  # much to declare, and few files have such keys

        left -= {name for name, declared in PARAMETERS.items() if declared.of_model}
    return left
