"""Table of the keys of a predict YAML that are not of the model: files, ranks, device, training."""

from mindbatch.config.predict_yaml import conversions as to
from mindbatch.config.predict_yaml.entries import Checked, Entry, Sets

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
    "run_mode": Checked(to.only(("predict",), "only predict YAMLs are taken")),
    "use_legacy": Sets("model.provider", to.provider),
    "load_checkpoint": Sets("model.checkpoint_name_or_path", to.weights_folder),
    "pretrained_model_dir": Sets("model.checkpoint_name_or_path", to.model_folder),
    "load_ckpt_format": Checked(to.only(("safetensors", "ckpt", None, ""), "must be safetensors or ckpt")),
    "src_strategy_path_or_dir": Checked(to.source_strategy),
    "only_save_strategy": Checked(
        to.unless_asked("strategy files are made by mindbatch plan model.provider=mindformers layout.dir=DIR")
    ),
    "input_data": Checked(to.unless_asked("give prompts, prompts_file or data.path")),
    "predict_batch_size": Sets("model.batch_size"),
    "register_path": Checked(to.unless_asked(NO_CODE)),
    "trust_remote_code": Checked(to.unless_asked(NO_CODE)),
    "seed": Sets("decoding.seed"),
    "trainer.type": Checked(
        to.only(("CausalLanguageModelingTrainer",), "only CausalLanguageModelingTrainer: models of text")
    ),
    "use_parallel": Checked(to.only((True, False, None), "must be True or False")),
    "parallel_config.data_parallel": Sets("parallel.data_parallel", to.of_all_ranks),
    "parallel_config.model_parallel": Sets("parallel.model_parallel", to.of_all_ranks),
    "parallel_config.pipeline_stage": Sets("parallel.pipeline_stage", to.of_all_ranks),
    "parallel_config.expert_parallel": Checked(
        to.only((1, None), "experts are cut by model_parallel only; set it to 1")
    ),
    "parallel_config.context_parallel": Checked(to.only((1, None), "sequences are not cut; set it to 1")),
    "parallel_config.vocab_emb_dp": Sets("layout.vocab_emb_dp", absent=STRATEGIES),
    "parallel.strategy_ckpt_load_file": Checked(
        to.unless_asked("layers are cut by their own rules, and no strategy is read; remove it")
    ),
    "moe_config.expert_num": Checked(
        to.only((1, None), "models with experts run with use_legacy: False, from their config.json")
    ),
    "context.device_target": Sets("runtime.device_target"),
    "context.device_id": Checked(to.device_id),
    "context.max_device_memory": Sets(
        "runtime.device_memory",
        to.device_memory,
        "the cache takes runtime.cache_memory, and weights what they need",
    ),
    "context.runtime_num_threads": Sets("runtime.num_threads"),
    "context.mode": Checked(to.only((0, 1, "0", "1", "GRAPH_MODE", "PYNATIVE_MODE"), "must be 0 or 1")),
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
