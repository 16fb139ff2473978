"""Files of tensors: safetensors and MindSpore's .ckpt, read strictly and written."""
