"""Table of the keys of a predict YAML that are not of the model: files, ranks, device, training."""

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.entries import Checked, Entry, Ignored, Only, Sets, ignored

TRAINING = "of training"
PROFILING = "nothing is profiled"
STRATEGIES = "layers are cut by their own rules"
GRAPHS = "a setting of MindSpore's that MindBatch makes itself"
LOADING = "a folder of weights is cut as it is loaded"
WHICH_MODEL = "config.json says which model it is"
NO_CODE = "code that is named in a file is never run"
NO_EXPERTS = "no experts beside config.json's"
PRECISION = "kernels choose it beside model.dtype"

UNREAD = dict.fromkeys(
    ("callbacks", "eval_callbacks", "eval_dataset", "eval_dataset_task", "lr_schedule", "metric")
    + ("monitor_config", "optimizer", "recompute_config", "runner_config", "runner_wrapper")
    + ("swap_config", "train_dataset", "train_dataset_task"),
    TRAINING,
)
"""Sections at the top that have no effect, whatever they hold."""

FILES: dict[str, Entry] = {
    "run_mode": Only(("predict",), "only predict YAMLs are taken"),
    "use_legacy": Sets("model.provider", to.provider),
    "load_checkpoint": Sets("model.checkpoint_name_or_path", to.weights_folder),
    "pretrained_model_dir": Sets("model.checkpoint_name_or_path", to.model_folder),
    "load_ckpt_format": Only(("safetensors", "ckpt", None, ""), "must be safetensors or ckpt"),
    "src_strategy_path_or_dir": Checked(to.source_strategy),
    "only_save_strategy": Checked(
        to.unless_asked("strategy files are made by mindbatch plan model.provider=mindformers layout.dir=DIR")
    ),
    **ignored(LOADING, "auto_trans_ckpt", "transform_process_num", "balanced_load", "reshard_worker_num"),
    **ignored(LOADING, "load_ckpt_async", "remove_redundancy"),
    "output_dir": Ignored("logs and strategy files are not written; results go to output.dir"),
    "input_data": Checked(to.unless_asked("give prompts, prompts_file or data.path")),
    "predict_batch_size": Sets("model.batch_size"),
    "register_path": Checked(to.unless_asked(NO_CODE)),
    "trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    "auto_map": Ignored(NO_CODE),
    "seed": Sets("decoding.seed"),
    "use_legacy_format": Ignored(WHICH_MODEL),
    "trainer.type": Only(
        ("CausalLanguageModelingTrainer",), "only CausalLanguageModelingTrainer: models of text"
    ),
    "trainer.model_name": Ignored(WHICH_MODEL),
    **ignored("each run is deterministic", "infer_precision_sync", "train_precision_sync"),
    **ignored(TRAINING, "resume_training", "print_separate_loss", "do_eval", "eval_step_interval"),
    **ignored(TRAINING, "eval_epoch_interval", "ignore_data_skip", "data_skip_steps", "layer_scale"),
    **ignored(TRAINING, "layer_decay", "lr_scale", "lr_scale_factor", "micro_batch_interleave_num"),
    **ignored(TRAINING, "auto_tune", "filepath_prefix", "autotune_per_step", "save_file"),
    **ignored("nothing is uploaded", "remote_save_url"),
    **ignored(PROFILING, "profile", "profile_communication", "profile_memory", "init_start_profile"),
    **ignored(PROFILING, "profile_start_step", "profile_stop_step", "profile_rank_ids", "mstx"),
    **ignored(PROFILING, "profile_pipeline", "profile_level"),
    **ignored(GRAPHS, "exclude_cann_cpu", "postprocess_use_numpy"),
}

RANKS: dict[str, Entry] = {
    "use_parallel": Only((True, False, None), "must be True or False"),
    "parallel_config.data_parallel": Sets("parallel.data_parallel", to.of_all_ranks),
    "parallel_config.model_parallel": Sets("parallel.model_parallel", to.of_all_ranks),
    "parallel_config.pipeline_stage": Sets("parallel.pipeline_stage", to.of_all_ranks),
    "parallel_config.expert_parallel": Only((1, None), "experts are cut by model_parallel only; set it to 1"),
    "parallel_config.context_parallel": Only((1, None), "sequences are not cut; set it to 1"),
    "parallel_config.vocab_emb_dp": Sets("layout.vocab_emb_dp", absent=STRATEGIES),
    **{
        f"parallel_config.{name}": Ignored(TRAINING)
        for name in ("micro_batch_num", "seq_split_num", "use_seq_parallel", "optimizer_shard", "mem_coeff")
        + ("gradient_aggregation_group", "context_parallel_algo", "ulysses_degree_in_cp", "recompute")
    },
    "parallel.strategy_ckpt_load_file": Checked(
        to.unless_asked("layers are cut by their own rules, and no strategy is read; remove it")
    ),
    **{
        f"parallel.{name}": Ignored(STRATEGIES)
        for name in ("parallel_mode", "full_batch", "search_mode", "auto_parallel_search_mode", "device_num")
        + ("dataset_strategy", "enable_alltoall", "strategy_ckpt_save_file", "strategy_ckpt_config")
        + ("global_rank", "communi_parallel_mode", "group_ckpt_save_file", "parameter_broadcast")
    },
    **{
        f"parallel.{name}": Ignored(TRAINING)
        for name in ("gradients_mean", "loss_repeated_mean", "enable_parallel_optimizer", "comm_fusion")
        + ("parallel_optimizer_config", "gradient_fp32_sync", "all_reduce_fusion_config", "pipeline_config")
    },
}

EXPERTS: dict[str, Entry] = {
    "moe_config.expert_num": Only(
        (1, None), "models with experts run with use_legacy: False, from their config.json"
    ),
    **{
        f"moe_config.{name}": Ignored(NO_EXPERTS)
        for name in ("capacity_factor", "aux_loss_factor", "num_experts_chosen", "expert_group_size")
        + ("group_wise_a2a", "comp_comm_parallel", "comp_comm_parallel_degree", "save_token_distribution")
        + ("cur_layer", "enable_cold_hot_expert", "update_step", "hot_expert_num", "cold_token_percent")
        + ("moe_module_name", "routing_policy", "norm_topk_prob", "enable_sdrop", "router_dense_type")
        + ("use_fused_ops_topkrouter", "shared_expert_num", "use_shared_expert_gating", "max_router_load")
        + ("topk_method", "topk_group", "n_group", "first_k_dense_replace", "moe_intermediate_size")
        + ("routed_scaling_factor", "use_gmm", "use_gating_sigmoid", "expert_model_parallel", "use_fused_mla")
        + ("z_loss_factor", "aux_loss_types", "aux_loss_factors", "balance_via_topk_bias", "ep_extend_tp")
        + ("topk_bias_update_rate", "use_allgather_dispatcher", "moe_shared_expert_overlap")
        + ("enable_deredundency", "npu_nums_per_device", "enable_gmm_safe_tokens", "use_fused_ops_permute")
        + ("callback_moe_droprate", "dispatch_global_max_bs")
    },
}

DEVICE: dict[str, Entry] = {
    "context.device_target": Sets("runtime.device_target"),
    "context.device_id": Checked(to.device_id),
    "context.max_device_memory": Sets(
        "runtime.device_memory",
        to.device_memory,
        "the cache takes runtime.cache_memory, and weights what they need",
    ),
    "context.runtime_num_threads": Sets("runtime.num_threads"),
    "context.mode": Only((0, 1, "0", "1", "GRAPH_MODE", "PYNATIVE_MODE"), "must be 0 or 1"),
    **{
        f"context.{name}": Ignored(GRAPHS)
        for name in ("enable_graph_kernel", "graph_kernel_flags", "max_call_depth", "ascend_config")
        + ("memory_optimize_level", "mempool_block_size", "jit_config", "jit_level", "affinity_cpu_list")
        + ("infer_boost", "deterministic", "dataset_broadcast_opt_level", "enable_compile_cache")
        + ("compile_cache_path", "pynative_synchronize", "op_timeout", "env_config_path", "memory_offload")
        + ("inter_op_parallel_num", "exec_order", "enable_reduce_precision", "variable_memory_max_size")
        + ("save_graphs", "save_graphs_path", "enable_dump", "save_dump_path", "print_file_path")
        + ("enable_profiling", "profiling_options", "hccl_buffer", "precision_mode", "thread_num")
    },
}
