"""Writes pipeline/mindbatch/ascend_check/recorded.npz: the logits of its tiny models, on this machine's CPU.

Run it again only when the models, their weights or the steps change; the kernels' tests say that they agree.
"""

import numpy as np

from mindbatch.ascend_check.models import CONFIGS, RECORDED
from mindbatch.ascend_check.runs import logits
from mindbatch.kernels.choice import choose_kernels
from mindbatch.parallel.context import initialise


def main() -> None:
    initialise("CPU")
    kernels = choose_kernels("auto", "CPU")
    np.savez_compressed(RECORDED, **{name: logits(name, kernels) for name in sorted(CONFIGS)})


if __name__ == "__main__":
    main()
