"""Writes tests/unit/checkpoint/formats/pytorch/*.bin: small files as torch.save writes them, new and old.

Run with a Python that has torch; the tests do not need it. What is in them is in the test.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch

HOME = Path(__file__).parents[1] / "unit/checkpoint/formats/pytorch"
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def views() -> dict[str, torch.Tensor]:
    """Parts of one storage of the numbers 0 to 59, and some with storages of their own."""
    base = torch.arange(60.0).reshape(3, 4, 5)
    return {
        "base": base,
        "last": base[2],
        "columns": base[:, 1:3, 2:],
        "permuted": base.permute(2, 0, 1),
        "steps": base[::2, :, ::3],
        "matrix": torch.arange(6.0).reshape(2, 3).t(),
        "half": torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).t(),
        "one": torch.tensor(7.0),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.arange(4.0)),
        "tied": base[0],
    }


def main() -> None:
    HOME.mkdir(exist_ok=True)
    kinds = OrderedDict((str(dtype), torch.arange(5).to(dtype)) for dtype in DTYPES)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    torch.nn.init.constant_(module[0].weight, 0.5)
    torch.nn.init.constant_(module[0].bias, -2.0)
    saved = {"views": views(), "dtypes": kinds, "module": module.state_dict()}
    for name, content in saved.items():
        torch.save(content, HOME / f"{name}.bin")
        torch.save(content, HOME / f"{name}_old.bin", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
