"""The parameters of one rank's model, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindbatch.kernels.adapters import AdaptedParameter

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
