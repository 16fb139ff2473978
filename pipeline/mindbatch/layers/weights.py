"""The parameters of one rank's model, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindbatch.kernels.adapters import AdaptedParameter
from mindbatch.kernels.interface import Kernels

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


@dataclass(frozen=True)
class Weights:
    """Loaded parameters with the number of outputs of each matrix (a packed shape does not tell).

    absent: what the kernels take for a vector that the model has not.
    adapted: what adapters have for each parameter that any of them touches.
    """

    parameters: Mapping[str, Parameter]
    outputs: Mapping[str, int]
    absent: Tensor
    adapted: Mapping[str, AdaptedParameter] = field(default_factory=dict)

    def get(self, name: str) -> Parameter:
        """A parameter that the architecture promises.

        Raises:
            KeyError: the loader did not make it, a defect of the model's description.
        """
        return self.parameters[name]

    def optional(self, name: str) -> Parameter | Tensor:
        """The parameter, or `absent`."""
        return self.parameters.get(name, self.absent)

    def raised(self, name: str, offset: float, kernels: Kernels) -> Parameter | Tensor:
        """The parameter plus an offset, or `absent`.

        The offset is added here, once, and in float32, as the model itself computes it: half precision would
        lose what the weight adds to the offset.
        """
        if name not in self.parameters or not offset:
            return self.optional(name)
        return kernels.raised(self.parameters[name], offset)
