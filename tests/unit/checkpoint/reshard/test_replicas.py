"""What several ranks hold must be the same in all of them; a reshard that would read one of them says so."""

import json
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, tensor_digest
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.placement.regions import Placement, Segment, Shard, as_rank_files, single_segment
from mindbatch.checkpoint.reshard.replicas import compare, digest_errors, replicas_of
from mindbatch.io.errors import CheckpointError
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source
from reshard_adapters import reshard
from reshard_models import LLAMA, flip_a_bit, write_model, write_tensors

NORM = "model.layers.1.input_layernorm.weight"
KEYS = "model.layers.2.self_attn.k_proj.weight"
QUERIES = "model.layers.2.self_attn.q_proj.weight"


def change(folder: Path, name: str, *, digest: bool) -> Path:
    """Changes the tensor's last byte, and the recorded digest of it too if asked for, else removes all."""
    path = folder / "model.safetensors"
    flip_a_bit(path, name, -1)
    digests = folder / DIGESTS_NAME
    if not digest:
        digests.unlink()
        return path
    with open_tensor_file(path) as file:
        content = json.loads(digests.read_text())
        content["files"][path.name][name] = tensor_digest(file, name)
    digests.write_text(json.dumps(content))
    return path


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Four ranks; two of them have each key/value head."""
    reshard(write_model(tmp_path / "source", LLAMA, "BF16"), tmp_path / "cut", target_model_parallel=4)
    return tmp_path / "cut"


@pytest.mark.parametrize(("name", "rank", "first"), [(NORM, 2, 0), (KEYS, 3, 2), (KEYS, 1, 0)])
@pytest.mark.parametrize("digest", [True, False])
def test_a_replica_that_is_another_is_refused(
    cut: Path, tmp_path: Path, name: str, rank: int, first: int, digest: bool
) -> None:
    """By its digest always, by its bytes with verify."""
    path = change(cut / f"rank_{rank}", name, digest=digest)
    if not digest:
        reshard(cut, tmp_path / "unverified")  # nobody reads it
    with pytest.raises(CheckpointError) as caught:
        reshard(cut, tmp_path / "whole", verify=not digest)
    assert caught.value.lines == (
        f"{path}: tensor '{name}' is not as in {cut}/rank_{first}/model.safetensors, where it must be the "
        "same; one of the two files is damaged or of another checkpoint",
    )
    assert not (tmp_path / "whole").exists()


def test_all_are_named_at_once(cut: Path, tmp_path: Path) -> None:
    for rank, name in ((1, NORM), (3, KEYS), (3, NORM)):
        change(cut / f"rank_{rank}", name, digest=True)
    with pytest.raises(CheckpointError) as caught:
        reshard(cut, tmp_path / "whole")
    assert len(caught.value.lines) == 3


def test_bytes_that_are_compared_count(cut: Path) -> None:
    with (opened := open_reshard_source(ReshardConfig(source=str(cut)))).source:
        replicas = replicas_of(opened.files, opened.source.ranks)
    states: list[tuple[str, int, int]] = []
    compare(replicas, lambda *state: states.append(state))
    assert {what for what, _, _ in states} == {"comparing what several ranks hold"}
    norms, heads = 7 * 32 * 3, 3 * 2 * 4 * 32 * 2  # three ranks after the first; two ranks after two others
    assert states[-1][1:] == ((norms + heads) * 2,) * 2


def test_what_is_on_one_rank_alone_is_not_compared(cut: Path, tmp_path: Path) -> None:
    change(cut / "rank_1", QUERIES, digest=True)
    reshard(cut, tmp_path / "whole", verify=True)


@pytest.mark.parametrize(("row", "is_shared"), [(0, True), (1, True), (2, False), (3, False)])
def test_boxes_may_overlap_in_part(tmp_path: Path, row: int, is_shared: bool) -> None:
    """Rank 0 has rows 0 to 4, rank 1 rows 2 to 6; a scalar is on both."""
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    parts = [values[0:4].copy(), values[2:6].copy()]
    parts[1][row, 1] = -1
    for rank, part in enumerate(parts):
        (tmp_path / f"rank_{rank}").mkdir()
        tensors = {"w": part, "scale": np.float32(3)[...]}
        write_tensors(tmp_path / f"rank_{rank}/model.safetensors", tensors, "F32")
    shards = tuple(single_segment((4, 4), ((low, low + 4), (0, 4))) for low in (0, 2))
    scalar = Shard((), (Segment((), ()),))
    placements = {
        "w": Placement("w", (6, 4), shards),
        "scale": Placement("scale", (), (scalar, scalar)),
    }
    with open_source(tmp_path) as source:
        replicas = replicas_of(as_rank_files(placements, 2), source.ranks)
        assert digest_errors(as_rank_files(placements, 2), source.ranks) == []
    assert {pair.other.name for pair in replicas} == {"w", "scale"}
    if not is_shared:
        compare(replicas)
        return
    with pytest.raises(CheckpointError, match="rank_1/model.safetensors: tensor 'w' is not as in"):
        compare(replicas)
