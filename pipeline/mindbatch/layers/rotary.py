"""From positions to the cosines and sines of rotary embedding, once per step for all layers."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mindbatch.kernels.arrays import constant
from mindbatch.models.architecture import Rotary


class RotaryAngles(nn.Cell):
    """positions [T] int32 -> cos, sin [T, rotary_dim / 2] float32."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__(auto_prefix=False)
        self.frequencies = constant(rotary.inverse_frequencies, np.float32)
        self.scale = rotary.scale

    def construct(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = ops.cast(positions, mstype.float32).expand_dims(1) * self.frequencies
        if self.scale != 1.0:
            return ops.cos(angles) * self.scale, ops.sin(angles) * self.scale
        return ops.cos(angles), ops.sin(angles)
