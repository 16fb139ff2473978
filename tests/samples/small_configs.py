"""The least that a config.json must say, for each shape of model there is."""

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "padded_vocab_size": 100,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_layers": 2,
    "num_attention_heads": 4,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "kv_channels": 8,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}
