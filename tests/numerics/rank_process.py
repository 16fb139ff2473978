"""One process of a model-parallel group under msrun: FOLDER RANKS OUT writes OUT/N.npy, the first logits."""

import os
import sys
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.loading.first_logits import first_logits
from mindbatch.models.registry import describe
from mindbatch.parallel.context import initialise, join_group
from mindbatch.parallel.topology import TensorSlice, Topology


def main(folder: str, ranks: str, out: str) -> None:
    initialise("CPU")
    rank = int(os.environ["RANK_ID"])
    join_group(Topology(1, int(ranks)), rank)
    with ModelFolder(folder, TensorSlice(rank, int(ranks))) as model:
        np.save(Path(out) / f"{rank}.npy", first_logits(describe(model.config), model))


if __name__ == "__main__":
    main(*sys.argv[1:])
