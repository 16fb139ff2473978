"""A model folder with stacks of experts in MXFP4."""

import numpy as np

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.model_spec.registry import describe, tensor_specs
from quantised_folders import Sample
from quantised_matrices import E2M1
from small_configs import EXPERTS, LLAMA


def mxfp4(hidden: int = 64, inner: int = 32) -> Sample:
    """A model whose stacks of experts are in MXFP4."""
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    sizes = {"model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": inner}
    config = LLAMA | EXPERTS["gpt_oss"] | sizes | {"quantization_config": settings}
    generator = np.random.default_rng(3)
    made = Sample(config, {}, {})
    for name, shape in source_shapes(tensor_specs(describe(config))).items():
        if len(shape) < 3:
            made.tensors[name] = made.floats[name] = generator.standard_normal(shape).astype(np.float32)
            continue
        count, inputs, outputs = shape
        codes = generator.integers(0, 16, (count, outputs, inputs // 32, 32))
        scales = generator.integers(100, 140, (count, outputs, inputs // 32))
        made.tensors[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
        made.tensors[f"{name}_scales"] = scales.astype(np.uint8)
        numbers = E2M1[codes] * 2.0 ** (scales - 127)[..., None]
        made.floats[name] = numbers.reshape(count, outputs, inputs).swapaxes(1, 2).astype(np.float32)
    return made
