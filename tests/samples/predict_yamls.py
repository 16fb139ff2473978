"""Predict YAMLs of MindFormers in both forms, with the keys that its releases have."""

MCORE = """\
seed: 7
output_dir: './output'
load_checkpoint: ''
use_parallel: False
run_mode: 'predict'
use_legacy: False
load_ckpt_format: 'safetensors'
trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'qwen3'
parallel_config:
  data_parallel: 1
  model_parallel: 8
pretrained_model_dir: 'FOLDER'
model:
  model_config:
    seq_length: 64
    compute_dtype: "bfloat16"
    layernorm_compute_dtype: "float32"
    softmax_compute_dtype: "float32"
    rotary_dtype: "bfloat16"
    params_dtype: "bfloat16"
    add_qkv_bias: True
    moe_router_fusion: True
    use_fused_mla: False
    block_size: 128
    num_blocks: 512
generation_config:
  do_sample: True
  max_length: 32768
  max_new_tokens: 512
  bos_token_id: 1
  eos_token_id: [2]
  pad_token_id: 3
  top_k: 5
  top_p: 0.5
  repetition_penalty: 1.05
  temperature: 0.7
context:
  mode: 0
  enable_graph_kernel: False
  ascend_config:
    precision_mode: "must_keep_origin_dtype"
  max_device_memory: "59GB"
  save_graphs: False
  save_graphs_path: "./graph"
  device_id: 0
  affinity_cpu_list: None
parallel:
  parallel_mode: "MANUAL_PARALLEL"
  enable_alltoall: False
  full_batch: False
"""

OLDER = """\
seed: 0
output_dir: './output'
load_checkpoint: 'FOLDER'
src_strategy_path_or_dir: ''
auto_trans_ckpt: False
only_save_strategy: False
resume_training: False
run_mode: 'predict'
trainer: {type: CausalLanguageModelingTrainer, model_name: 'llama2_7b'}
runner_config: {epochs: 2, batch_size: 1, sink_mode: True}
runner_wrapper: {type: MFTrainOneStepCell, use_clip_grad: True}
optimizer: {type: FP32StateAdamWeightDecay, beta1: 0.9}
lr_schedule: {type: CosineWithWarmUpLR, total_steps: -1}
train_dataset: &train_dataset
  data_loader: {type: MindDataset, dataset_dir: ""}
train_dataset_task:
  type: CausalLanguageModelDataset
  dataset_config: *train_dataset
eval_dataset: &eval_dataset {repeat: 1}
eval_dataset_task: {dataset_config: *eval_dataset}
do_eval: False
eval_step_interval: -1
eval_epoch_interval: 50
use_parallel: True
parallel:
  parallel_mode: 1
  gradients_mean: False
  loss_repeated_mean: True
  enable_alltoall: False
  full_batch: True
  search_mode: "sharding_propagation"
  enable_parallel_optimizer: True
  strategy_ckpt_save_file: "./ckpt_strategy.ckpt"
  strategy_ckpt_config: {save_file: "./ckpt_strategy.ckpt"}
  parallel_optimizer_config: {gradient_accumulation_shard: False}
parallel_config:
  data_parallel: 1
  model_parallel: 1
  pipeline_stage: 1
  expert_parallel: 1
  use_seq_parallel: False
  micro_batch_num: 1
  vocab_emb_dp: True
  gradient_aggregation_group: 4
micro_batch_interleave_num: 1
moe_config: {expert_num: 1, capacity_factor: 1.05, aux_loss_factor: 0.05, num_experts_chosen: 1}
recompute_config: {recompute: False, select_recompute: False}
callbacks:
  - type: MFLossMonitor
eval_callbacks:
  - type: ObsMonitor
context:
  mode: 0
  device_target: "CPU"
  enable_graph_kernel: False
  graph_kernel_flags: "--disable_expand_ops=Softmax,Dropout"
  max_call_depth: 10000
  max_device_memory: "58GB"
  save_graphs: False
  save_graphs_path: "./graph"
  device_id: 0
  memory_optimize_level: "O1"
model:
  model_config:
    type: LlamaConfig
    batch_size: 4
    seq_length: 48
    hidden_size: 64
    num_layers: 2
    num_heads: 4
    n_kv_heads: 2
    vocab_size: 300
    multiple_of: 256
    rms_norm_eps: 1e-5
    theta: 10000.0
    bos_token_id: 1
    eos_token_id: 2
    pad_token_id: 0
    ignore_token_id: -100
    compute_dtype: "float16"
    layernorm_compute_type: "float32"
    softmax_compute_type: "float32"
    rotary_dtype: "float16"
    param_init_type: "float32"
    use_past: True
    scaling_factor: 1.0
    extend_method: "None"
    use_flash_attention: True
    use_prompt_flash_attention: False
    qkv_concat: False
    block_size: 16
    num_blocks: 1024
    is_dynamic: True
    offset: 0
    checkpoint_name_or_path: "llama2_7b"
    repetition_penalty: 1
    max_decode_length: 40
    top_k: 3
    top_p: 1
    do_sample: False
    auto_map: {AutoTokenizer: [some_tokenizer.SomeTokenizer, null]}
  arch:
    type: LlamaForCausalLM
processor:
  return_tensors: ms
  tokenizer:
    unk_token: '<unk>'
    bos_token: '<s>'
    eos_token: '</s>'
    pad_token: '<unk>'
    type: LlamaTokenizer
    vocab_file: "FOLDER/tokenizer.model"
  type: LlamaProcessor
metric: {type: EmF1Metric}
auto_tune: False
filepath_prefix: './autotune'
autotune_per_step: 10
profile: False
profile_start_step: 1
profile_stop_step: 10
init_start_profile: False
profile_communication: False
profile_memory: True
layer_scale: False
layer_decay: 0.65
lr_scale: False
lr_scale_factor: 256
remote_save_url: "Please input obs url on AICC platform."
"""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}
"""config.json of the model that OLDER describes."""

PANGU = """\
seed: 0
run_mode: 'predict'
load_checkpoint: 'FOLDER'
use_parallel: False
trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'pangualpha_2_6b'
moe_config:
  expert_num: 1
  capacity_factor: 1.05
  aux_loss_factor: 0.05
  num_experts_chosen: 1
model:
  model_config:
    type: PanguAlphaConfig
    batch_size: 1
    seq_length: 64
    vocab_size: 101
    hidden_size: 32
    ffn_hidden_size: 128
    num_layers: 3
    num_heads: 4
    pad_token_id: 6
    eos_token_id: 9
    post_layernorm_residual: False
    param_init_type: 'float32'
    compute_dtype: 'float16'
    softmax_compute_type: 'float16'
    embedding_dropout_prob: 0.1
    hidden_dropout_rate: 0.1
    attention_dropout_rate: 0.1
    hidden_act: 'fast_gelu'
    use_past: True
    use_moe: False
    expert_num: 1
    per_token_num_experts_chosen: 1
    checkpoint_name_or_path: 'pangualpha_2_6b'
    repetition_penalty: 1
    max_decode_length: 64
    top_k: 5
    top_p: 1
    do_sample: False
  arch:
    type: PanguAlphaHeadModel
processor:
  return_tensors: ms
  tokenizer:
    type: PanguAlphaTokenizer
  type: PanguAlphaProcessor
"""
PANGU_CONFIG: dict[str, object] = {
    "model_type": "gpt_pangu",
    "vocab_size": 101,
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "activation_function": "quick_gelu",
}

CHATGLM_6B = """\
run_mode: 'predict'
load_checkpoint: 'FOLDER'
model:
  model_config:
    type: GLMConfig
    vocab_size: 61
    hidden_size: 32
    num_layers: 2
    num_heads: 4
    inner_hidden_size: 48
    seq_length: 64
    embedding_dropout_prob: 0.0
    attention_dropout_rate: 0.0
    hidden_dropout_rate: 0.0
    hidden_size_per_attention_head:
    layernorm_order: 'post'
    layernorm_epsilon: 1.0e-5
    use_final_layernorm: True
    use_past: True
    activation_func: 'GELU'
    position_encoding_2d: True
    param_init_type: 'float16'
    layernorm_compute_type: 'float32'
    softmax_compute_type: 'float32'
    compute_dtype: 'float16'
    bos_token_id: 60
    eos_token_id: 57
    mask_token_id: 58
    gmask_token_id: 59
    pad_token_id: 3
    max_decode_length: 64
    is_enhanced_encoder: True
    is_sample_acceleration: True
    top_k: 1
    top_p: 1
    repetition_penalty: 1
    do_sample: True
  arch:
    type: GLMChatModel
processor:
  return_tensors: ms
  tokenizer:
    type: ChatGLMTokenizer
    bos_token: '<sop>'
    end_token: '</s>'
    gmask_token: '[gMASK]'
  type: GLMProcessor
"""
CHATGLM_6B_CONFIG: dict[str, object] = {
    "model_type": "chatglm",
    "position_encoding_2d": True,
    "vocab_size": 61,
    "hidden_size": 32,
    "inner_hidden_size": 48,
    "num_layers": 2,
    "num_attention_heads": 4,
    "layernorm_epsilon": 1e-5,
    "mask_token_id": 58,
    "gmask_token_id": 59,
}
"""Neither form is in MindFormers 1.9; these are the keys of 1.0."""

DYNAMIC = """\
run_mode: predict
checkpoint:
  enable_save: False
  save_path: "./output/checkpoint"
  prefix: "qwen3"
  load_path: "FOLDER"
  load_balanced: False
  no_load_optim: True
inference:
  max_new_tokens: 12
  batch_size: 3
  output: "answers.jsonl"
  input_data: "rows.jsonl"
training:
  steps: 10
  local_batch_size: 1
  global_batch_size: 1
  seed: 7
  deterministic: True
optimizer: {type: AdamW, betas: [0.9, 0.95]}
lr_scheduler: {type: ConstantWarmUpLR, learning_rate: 1.e-5}
parallelism:
  data_parallel_shard: -1
  disable_gradient_division: True
  expert_parallel: 1
  tensor_parallel: 2
  context_parallel: 1
  context_parallel_method: colossal
  pipeline_parallel: 1
  pipeline_parallel_layers_per_stage: null
  sequence_parallel: True
recompute: &recompute {mode: full}
recompute_comm: *recompute
monitor: {train_state: {local_loss: False}}
train_dataset:
  dataloader: {type: BlendedMegatronDatasetDataLoader, config: {seq_length: 64}}
context:
  mode: 1
  device_target: "CPU"
  max_device_memory: "8GB"
model:
  model_type: qwen3
  architectures: Qwen3ForCausalLM
  vocab_size: 300
  seq_length: 64
  hidden_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  rms_norm_eps: 1.e-6
  add_bias_linear: False
  use_flash_attention: True
  attention_dropout: 0.0
  params_dtype: "float32"
  compute_dtype: "bfloat16"
  layernorm_compute_dtype: "float32"
  softmax_compute_dtype: "float32"
  rotary_dtype: "float32"
  num_nextn_predict_layers: 1
  moe_aux_loss_coeff: 0.001
"""
"""A YAML of MindFormers 2.1 for dynamic graphs: that of a training, with `run_mode` and `inference`."""

QWEN3: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "rms_norm_eps": 1e-6,
}
"""config.json of the model that DYNAMIC describes."""
