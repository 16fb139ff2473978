"""One process of a model-parallel group under msrun: FOLDER RANKS OUT writes OUT/N.npy, the first logits."""

import sys
from pathlib import Path

import numpy as np
from mindspore.communication import get_rank, init

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.engine.first_logits import logits_of_rank
from mindbatch.models.registry import describe
from mindbatch.parallel import collectives
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import TensorSlice


def main(folder: str, ranks: str, out: str) -> None:
    initialise("CPU")
    init()
    # MindSpore's AllGather knows no other group on the CPU, and here all processes are one group.
    collectives.MODEL_GROUP = "mccl_world_group"
    rank = get_rank()
    with ModelFolder(folder, TensorSlice(rank, int(ranks))) as model:
        np.save(Path(out) / f"{rank}.npy", logits_of_rank(describe(model.config), model))


if __name__ == "__main__":
    main(*sys.argv[1:])
