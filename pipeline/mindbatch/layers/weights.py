"""The parameters of one rank's model, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, Tensor

from mindbatch.kernels.interface import constant


@dataclass(frozen=True)
class Weights:
    """Loaded parameters with the number of outputs of each matrix (a packed shape does not tell)."""

    parameters: Mapping[str, Parameter]
    outputs: Mapping[str, int]

    def get(self, name: str) -> Parameter:
        """A parameter that the architecture promises.

        Raises:
            KeyError: the loader did not make it, a defect of the model's description.
        """
        return self.parameters[name]

    def optional(self, name: str) -> Parameter | Tensor:
        """The parameter, or a tensor of one zero: what the kernels take for an absent vector."""
        found = self.parameters.get(name)
        return constant([0.0], np.float32) if found is None else found
