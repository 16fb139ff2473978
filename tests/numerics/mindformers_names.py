"""Prints, as JSON, the parameters of small MindFormers networks and what its own conversion makes of tensors.

Run as a program: importing MindFormers takes seconds and writes a log to LOG_MF_PATH.
"""

import json
import sys

import mindspore as ms
import numpy as np

from mindbatch.backends.mindformers.hyper_parallel import stand_in_for_hyper_parallel

stand_in_for_hyper_parallel()

from mindformers import (  # noqa: E402
    ChatGLM2Config,
    ChatGLM2ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)
from mindformers.utils.convert_utils import ffn_concat_hf2mg, qkv_concat_hf2mg  # noqa: E402

FLOAT32 = dict.fromkeys(
    ("compute_dtype", "param_init_type", "layernorm_compute_type", "softmax_compute_type", "rotary_dtype"),
    "float32",
)
LLAMA = {
    "num_layers": 1, "hidden_size": 32, "num_heads": 4, "n_kv_heads": 2, "intermediate_size": 48,
    "vocab_size": 64, "seq_length": 16, "use_past": False, **FLOAT32,
}  # fmt: skip
CHATGLM = {
    "num_layers": 1, "padded_vocab_size": 64, "hidden_size": 32, "ffn_hidden_size": 48, "kv_channels": 8,
    "num_attention_heads": 4, "multi_query_group_num": 2, "seq_length": 16, "use_past": False,
    "compute_dtype": "float32", "param_init_type": "float32", "layernorm_compute_type": "float32",
}  # fmt: skip


def parameters(network):
    """Name and shape of each, without the key/value cache."""
    return {
        each.name: list(each.shape)
        for each in network.get_parameters()
        if "paged_attention_mgr" not in each.name
    }


def numbered(*shape):
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def main(names_file):
    """names_file: JSON list of Hugging Face names."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    settings = {"plain": {}, "fused": {"qkv_concat": True}, "bias": {"qkv_has_bias": True}}
    found = {
        f"llama {name}": parameters(LlamaForCausalLM(LlamaConfig(**LLAMA, **more)))
        for name, more in settings.items()
    }
    for qkv, mlp in ((False, True), (False, False), (True, True)):
        config = ChatGLM2Config(**CHATGLM, qkv_concat=qkv, mlp_concat=mlp)
        found[f"chatglm {qkv} {mlp}"] = parameters(ChatGLM2ForConditionalGeneration(config))
    with open(names_file) as file:
        names = json.load(file)
    found["converted"] = {name: LlamaForCausalLM.convert_name(name) for name in names}
    found["qkv"] = qkv_concat_hf2mg(numbered(64, 32), 4, 2, 32).tolist()
    found["qkv bias"] = qkv_concat_hf2mg(numbered(64), 4, 2, 32).tolist()
    found["gates"] = ffn_concat_hf2mg(numbered(96, 32), 48).tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
