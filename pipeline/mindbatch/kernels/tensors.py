"""MindSpore's tensors over memory that NumPy has, too."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mindbatch.kernels.arrays import Array


def shared_parameter(name: str, array: Array) -> Parameter:
    """A Parameter over the array's own memory; graphs read and write it in place.

    Parameter(tensor) would copy the data. It is made small first, then given the array.
    """
    parameter = Parameter(Tensor(np.zeros(1, array.dtype)), name=name, requires_grad=False)
    parameter.set_data(Tensor.from_numpy(array), slice_shape=True)
    return parameter


def constant(values: Any, dtype: Any) -> Tensor:
    """A small constant tensor that a Cell keeps."""
    return Tensor(np.asarray(values, dtype))
