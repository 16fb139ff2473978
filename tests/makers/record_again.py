"""Records anew what the transformers of this Python computes for cases of a fixture, of the same folders.

    PYTHON tests/makers record_again tests/numerics/fixtures/NAME.npz CASE...

For cases that releases of transformers compute differently: the fixtures have what 5.24 computes for
qwen2_moe_window (windows on every other layer), deepseek_v2_groups and deepseek_v2_odd (mscale in scores),
gpt_oss and gpt_oss_layers (swiglu_limit).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from model_folders import descriptions, fixture, write_folder

from make_model_fixtures import references
from make_saved_folders import loaded


@torch.no_grad()
def main(path: Path, cases: list[str]) -> None:
    """Replaces the arrays of the cases."""
    arrays = dict(fixture(path))
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), descriptions(path)[case])
            found = references(loaded(folder), [*descriptions(path)].index(case))
        arrays |= {f"{case}.{kind}": array for kind, array in found.items()}
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
