"""A model folder whose weights are a Checkpoint 2.0: each tensor is put together when it is read."""

import os
from collections.abc import Callable, Mapping

from mindbatch.checkpoint.folders.folder_files import existing_folder
from mindbatch.checkpoint.folders.iteration_files import iteration_in
from mindbatch.checkpoint.folders.renamed_folder import RenamedFolder
from mindbatch.checkpoint.folders.tensor_set import shard_sets
from mindbatch.checkpoint.iterations.metadata import placements
from mindbatch.checkpoint.placement.regions import Placement, RankFiles

Renamed = Callable[[Mapping[str, Placement], int], RankFiles]
"""What so many files hold under Hugging Face's names, by the placements of what they hold under their own."""


class IterationFolder(RenamedFolder):
    """Gives the tensors Hugging Face's names, as in a whole model's folder."""

    def __init__(self, path: str | os.PathLike[str], renamed: Renamed) -> None:
        """Raises:
        ConfigError: `path` is not a folder.
        CheckpointError: lists what is missing, damaged, or contradicts itself.
        """
        folder = existing_folder(path)
        iteration = iteration_in(folder)
        assert iteration is not None
        sets = shard_sets(iteration)
        super().__init__(folder, sets, lambda: renamed(placements(iteration, sets), len(sets)))
