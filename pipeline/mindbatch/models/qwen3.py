"""qwen3: Llama's shape with a head size of its own and a norm on each query and key head."""

from mindbatch.models import llama, qwen2

MODEL = llama.relative(windows=qwen2.read_windows, bias_key="attention_bias", qk_norm=True)
