"""Prints, as JSON, the parameters of small MindFormers networks and what its own conversion makes of tensors.

Run as a program: importing MindFormers takes seconds and writes a log to LOG_MF_PATH.
"""

import json
import sys
from types import SimpleNamespace

import mindspore as ms
import numpy as np

from mindbatch.backends.mindformers.imports import stub_hyper_parallel

stub_hyper_parallel()

import mindformers.checkpoint.converter.convert_op as convert_op  # noqa: E402
from mindformers import (  # noqa: E402
    ChatGLM2Config,
    ChatGLM2ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)
from mindformers.models.qwen3.utils import Qwen3PreTrainedModel  # noqa: E402
from mindformers.models.qwen3_moe.utils import Qwen3MoePreTrainedModel  # noqa: E402
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


MCORE = {"qwen3": Qwen3PreTrainedModel, "qwen3_moe": Qwen3MoePreTrainedModel}
SIZES = SimpleNamespace(
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=8,
    hidden_size=32,
    num_moe_experts=3,
    moe_ffn_hidden_size=6,
    expert_model_parallel_size=1,
    tensor_model_parallel_size=1,
    use_contiguous_weight_layout_attention=False,
    use_interleaved_weight_layout_mlp=True,
)


def mcore(converters, shapes):
    """What MindFormers makes of numbered tensors of these shapes, by its names."""
    convert_op.get_auto_parallel_context = lambda name: 1
    tensors = {name: numbered(*shape) + 1e4 * place for place, (name, shape) in enumerate(shapes.items())}

    def weight(name):
        plain = name.replace("{}", "0", 1)
        if "{}" not in plain:
            return tensors[plain]
        return np.concatenate([tensors[plain.replace("{}", str(expert))] for expert in range(3)])

    made = {}
    for operation in converters:
        if hasattr(operation, "set_model_config"):
            operation.set_model_config(SIZES)
        weights = operation._hf_to_mf([weight(name) for name in operation.hf_names])
        names = [name.replace("{}", "0") for name in operation.mf_names]
        made |= {name: array.tolist() for name, array in zip(names, weights, strict=True)}
    return made


def main(names_file):
    """names_file: JSON: names of Hugging Face, and by type of an Mcore model its tensors' shapes."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    settings = {"plain": {}, "fused": {"qkv_concat": True}, "bias": {"qkv_has_bias": True}}
    found = {
        f"llama {name}": parameters(LlamaForCausalLM(LlamaConfig(**LLAMA, **more)))
        for name, more in settings.items()
    }
    for qkv in (False, True):
        config = ChatGLM2Config(**CHATGLM, qkv_concat=qkv, mlp_concat=True)
        found[f"chatglm {qkv}"] = parameters(ChatGLM2ForConditionalGeneration(config))
    with open(names_file) as file:
        names, shapes = json.load(file)
    found["converted"] = {name: LlamaForCausalLM.convert_name(name) for name in names}
    found["qkv"] = qkv_concat_hf2mg(numbered(64, 32), 4, 2, 32).tolist()
    found["qkv bias"] = qkv_concat_hf2mg(numbered(64), 4, 2, 32).tolist()
    found["gates"] = ffn_concat_hf2mg(numbered(96, 32), 48).tolist()
    for model_type, network in MCORE.items():
        found[f"mcore {model_type}"] = mcore(network.weight_converters, shapes[model_type])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
