"""For `parallel_core.inference.transformer.norm`: RmsNorm, by our kernels."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn

from mindbatch.kernels.mindspore_kernels import MindSporeKernels


class KernelRmsNorm(nn.Cell):
    """(x [..., width], weight [width]) -> (x / rms(x) * weight,)."""

    def __init__(self, epsilon: float, kernels: MindSporeKernels) -> None:
        super().__init__(auto_prefix=False)
        self.norm = kernels.cell("norm", epsilon=epsilon, centred=False)
        self.no_bias = kernels.absent()

    def construct(self, x: Tensor, weight: Tensor) -> tuple[Tensor]:
        rows = x.reshape((-1, x.shape[-1]))
        return (self.norm(rows, weight, self.no_bias).reshape(x.shape),)


def put_in(module: Any, kernels: MindSporeKernels) -> None:
    """Replaces the operator of an RMSNorm."""
    module.norm = KernelRmsNorm(module.eps, kernels)
