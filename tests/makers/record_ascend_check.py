"""Writes what tools/ascend_check/ has recorded, on this machine's CPU.

recorded.npz: the logits of its tiny models. two_devices.json: the tokens of the shipped model.

Run it again only when the models, their weights or the steps change; the kernels' tests say that they agree.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ascend_check import two_devices
from ascend_check.models import NAMES, RECORDED
from ascend_check.runs import logits
from mindbatch.kernels.choice import choose_kernels
from mindbatch.parallel.context import initialise


def main() -> None:
    with TemporaryDirectory() as folder:
        tokens = two_devices.generated(Path(folder))
    two_devices.RECORDED.write_text(json.dumps(tokens) + "\n")
    initialise("CPU")
    kernels = choose_kernels("auto", "CPU")
    np.savez_compressed(RECORDED, **{name: logits(name, kernels) for name in NAMES})


if __name__ == "__main__":
    main()
