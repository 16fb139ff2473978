"""The weights of MindFormers' models that adapters act on: those of our own layers that its modules have."""

import re

from mindbatch.models.model_spec import ModelSpec
from mindbatch.models.tensor_spec import TensorSpec

_ADAPTED = re.compile(r"(embedding|head|layers\.\d+\.(attention\.(qkv|output)|mlp\.(up|down)))\.weight")


def adapter_specs(spec: ModelSpec) -> list[TensorSpec]:
    """The linear layers, the token embedding and the head; of no router, no experts, no compressed vectors.

    Not of keys and values that the checkpoint has in one tensor either: MindFormers divides it by heads.
    """
    return [
        parameter
        for parameter in spec.parameters
        if _ADAPTED.fullmatch(parameter.name) and not any(part.run for part in parameter.parts)
    ]
