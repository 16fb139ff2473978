"""Writes tests/numerics/fixtures/iterations.tar.xz: checkpoints as MindFormers saves them in training.

    PYTHON tests/makers make_iteration_fixtures [TARGET]

PYTHON has MindSpore 2.10, MindFormers 2.0.0, and this package. CASE/ in the archive is what a job saved, one
process for a rank, and expected.npz there has every tensor whole. No job is trained. With MindFormers 2.1.0
the archive is iterations_2_1.tar.xz, with the JSON files only: it checks that the others have the same bytes.

MindFormers' and MindSpore's own are networks and optimizers, so names and shapes, `get_all_sharded_tensor`,
`save_checkpoint` with all that it calls, the classes of layouts, and the arithmetic of slices. Mocked are
rank, number of ranks and barrier; how tensors are divided, which the compiler of graphs or hyper_parallel
would say (the latter is not installed); and that parameters are divided, which they would have done.
"""

import os
import pickle
import sys
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt

from mindbatch.backends.mindformers.imports import stub_hyper_parallel

FIXTURES = Path(__file__).parents[1] / "numerics/fixtures"
FIXTURE, DESCRIPTIONS = FIXTURES / "iterations.tar.xz", FIXTURES / "iterations_2_1.tar.xz"
PLAIN = {"mtime": 0, "mode": 0o644, "uid": 0, "gid": 0, "uname": "", "gname": "", "deep": False}
CONFIG: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
TRAINED = ("embedding", "linear_proj", "layernorm")  # of the others there are no states: a smaller fixture
BY_COLUMNS = ("linear_proj", "linear_fc2")
LAST_STAGE = ("decoder.layers.1.", "decoder.final", "output_layer")
STATES = {"adam_m": 0.5, "adam_v": 0.25}  # times the parameter's numbers


@dataclass(frozen=True)
class Case:
    """A training job: its ranks, and how it saves."""

    iteration: int
    ranks: int = 1
    tensor: int = 1
    stages: int = 1
    dtype: str = "float32"
    prefix: str | None = "qwen3"
    optimizer: bool = True
    divides_optimizer: bool = False
    remove_redundancy: bool = False
    pynative: bool = False


CASES = {
    "a": Case(10),
    "b": Case(20, ranks=2, tensor=2, optimizer=False),
    "c": Case(30, ranks=8, tensor=2, stages=2, dtype="bfloat16", remove_redundancy=True),
    "d": Case(40, ranks=4, tensor=2, prefix=None, divides_optimizer=True, remove_redundancy=True),
    "e": Case(50, ranks=2, prefix="checkpoint", pynative=True),
}


def main(target: Path) -> None:
    """Saves every case, rank 0 first, which makes the folder, and packs them."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as logs:
        os.environ["LOG_MF_PATH"] = logs
        for name, case in CASES.items():
            for rank in range(case.ranks):
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    process.submit(run_rank, Path(root, name), case, rank).result()
        saved = [
            path for path in sorted(Path(root).rglob("*")) if path.is_file() and path.suffix != ".pickle"
        ]
        if version("mindformers").startswith("2.1"):
            refuse_other_bytes(Path(root), saved)
            saved = [path for path in saved if path.suffix == ".json"]
        with tarfile.open(target, "w:xz") as archive:
            for path in saved:
                archive.add(path, path.relative_to(root), filter=lambda member: member.replace(**PLAIN))


def refuse_other_bytes(root: Path, saved: list[Path]) -> None:
    """Ends the maker if a file of weights differs from the one that MindFormers 2.0 saved."""
    with tarfile.open(FIXTURE) as archive:
        for path in saved:
            member = archive.extractfile(str(path.relative_to(root)))
            assert member is not None
            if path.suffix != ".json" and path.read_bytes() != member.read():
                raise SystemExit(f"{path.relative_to(root)}: other bytes than in {FIXTURE}")


def run_rank(folder: Path, case: Case, rank: int) -> None:
    """What a process of the job does; it saves as MindFormers' callbacks do."""
    stub_hyper_parallel()
    from mindformers.checkpoint.checkpoint import CommonInfo, save_checkpoint
    from mindformers.checkpoint.sharded_tensor import get_all_sharded_tensor

    ms.set_context(mode=ms.PYNATIVE_MODE if case.pynative else ms.GRAPH_MODE, device_target="CPU")
    mock_cluster(case, rank, folder.parent / f"{folder.name}-scattered")
    cells = build(case)
    parameters = {name: value for cell in cells for name, value in cell.parameters_dict().items()}
    arrays = whole_arrays(case, parameters)
    (mock_hyper_parallel if case.pynative else mock_compiler)(case, parameters)
    shards = get_all_sharded_tensor(cells) if case.ranks > 1 else None
    for name, parameter in parameters.items():
        values = np.ascontiguousarray(slice_of(arrays[name], shards and shards[rank].get(name), rank))
        ours = "." not in name or rank in ranks_with(case, name)  # what is not stays whole, and is not saved
        parameter.set_data(ms.Tensor(values, parameter.dtype), slice_shape=ours)  # a number becomes [1]
        parameter.param_info.is_param_init = True
    save_checkpoint(
        iteration=case.iteration,
        network=cells[:1] if case.pynative else cells[0],
        optimizer=cells[1] if case.optimizer else None,
        common_info=CommonInfo(1, case.iteration, case.iteration, loss_scale=1.0, global_batch_size=8),
        user_prefix=case.prefix,
        save_checkpoint_path=str(folder),
        sharded_tensor_metas=shards,
        remove_redundancy=case.remove_redundancy,
        **({"global_model_keys": {*cells[0].parameters_dict()}} if takes_model_keys(save_checkpoint) else {}),
    )
    np.savez_compressed(folder / "expected.npz", **arrays)


def takes_model_keys(save_checkpoint: Any) -> bool:
    """True for MindFormers 2.1, to which rank 0 tells the names of all weights."""
    return "global_model_keys" in signature(save_checkpoint).parameters


def mock_cluster(case: Case, rank: int, scattered: Path) -> None:
    """Lets MindFormers take this process for a rank.

    scattered: a folder outside of the checkpoint, with what rank 0 sends to the others.
    """
    from mindformers.checkpoint import fully_parallel, layout_adapter, metadata
    from mindformers.core.context.build_context import build_mf_context
    from mindformers.tools import utils
    from mindformers.utils import parallel_utils

    build_mf_context({"use_legacy": False, "context": {}, "parallel": {}})
    utils.get_rank = lambda: rank
    utils.get_group_size = metadata.get_group_size = lambda: case.ranks
    parallel_utils.comm_func = SimpleNamespace(barrier=lambda: None)  # MindFormers 2.0
    parallel_utils.dist = parallel_utils.comm_func  # MindFormers 2.1
    if hasattr(fully_parallel, "scatter_object_list"):  # MindFormers 2.1
        calls = iter(range(100))
        fully_parallel.all_gather_object = lambda gathered, own: None  # of no rank is read back what it wrote
        fully_parallel.scatter_object_list = lambda received, objects, src: received.__setitem__(
            0, scatter(scattered / f"{next(calls)}.pickle", objects)[rank]
        )
    layout_adapter.get_context = {"mode": ms.PYNATIVE_MODE if case.pynative else ms.GRAPH_MODE}.get


def scatter(path: Path, objects: list[Any] | None) -> list[Any]:
    """Stores what rank 0 sends, and reads it on every other rank."""
    if objects is None:
        return list(pickle.loads(path.read_bytes()))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(objects))
    return objects


def build(case: Case) -> list[Any]:
    """The network, and the optimizer where it is saved."""
    from mindformers.models.qwen3.configuration_qwen3 import Qwen3Config

    if case.pynative:
        from mindformers.models.qwen3.modeling_qwen3_train_pynative import PyNativeQwen3ForCausalLM as Network
        from mindformers.pynative.optimizer.adamw import AdamW
    else:
        from mindformers.core.optim.adamw import AdamW
        from mindformers.models.qwen3.modeling_qwen3_train import TrainingQwen3ForCausalLM as Network
    network = Network(Qwen3Config(**CONFIG, params_dtype=case.dtype))
    for parameter in network.get_parameters():
        parameter.set_dtype(getattr(ms, case.dtype))
        parameter.requires_grad = any(word in parameter.name for word in TRAINED)
    return [network, AdamW(network.trainable_params(), learning_rate=1e-3)] if case.optimizer else [network]


def whole_arrays(case: Case, parameters: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Numbers that tell where they belong; bfloat16 has those up to 256 exactly."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for index, (name, parameter) in enumerate(parameters.items()):
        state, _, owner = name.partition(".")
        if state in STATES:
            arrays[name] = arrays[owner] * STATES[state]
        elif not owner:  # the learning rate, the step
            arrays[name] = np.full(parameter.shape, case.iteration, parameter.asnumpy().dtype)
        else:
            values = np.arange(parameter.size, dtype=np.float32).reshape(parameter.shape)
            arrays[name] = (values + 7 * index) % 251 if case.dtype == "bfloat16" else values + 10000 * index
    return arrays


def ranks_with(case: Case, name: str) -> list[int]:
    """The ranks of the stage that has a tensor."""
    count = case.ranks // case.stages
    first = case.ranks - count if any(part in name for part in LAST_STAGE) else 0
    return list(range(first, first + count))


def mock_hyper_parallel(case: Case, parameters: dict[str, Any]) -> None:
    """Answers for it: rows of matrices are divided along `dp`, other tensors are not."""
    from mindformers.checkpoint import checkpoint, layout_adapter

    mesh = {"device_matrix": [case.ranks // case.tensor, case.tensor], "alias_name": ["dp", "tp"]}
    divided = mesh | {"tensor_map": [1, -1], "rank_list": list(range(case.ranks))}
    layouts = {}
    for name, parameter in parameters.items():
        whole = {"type": str(parameter.dtype), "full_shape": list(parameter.shape)}
        layouts[name] = whole | divided if len(parameter.shape) == 2 else whole
    checkpoint.get_global_layout = layout_adapter.get_global_layout = lambda cell: {
        str(rank): {name: layouts[name] for name in cell.parameters_dict() if name != "learning_rate"}
        for rank in range(case.ranks)
    }


def mock_compiler(case: Case, parameters: dict[str, Any]) -> None:
    """Answers for it, in MindSpore's own classes."""
    from mindformers.checkpoint import layout_adapter
    from mindspore.parallel.strategy import _NetStrategyInfo

    raw = {name: compiled_strategy(case, value) for name, value in parameters.items() if "." in name}
    phase = {r: {name: s for name, s in raw.items() if r in s.rank_list} for r in range(case.ranks)}
    info = _NetStrategyInfo(SimpleNamespace(compile_phase="train"), {"train": phase}, {"train": phase})
    layout_adapter.get_strategy_metadata = lambda cells: info.get_rank_layout()


def compiled_strategy(case: Case, parameter: Any) -> SimpleNamespace:
    """Matrices along the last axis of the devices (0), by rows or columns; other tensors are whole (-1)."""
    axes = [[-1] for _ in parameter.shape]
    if len(axes) == 2:
        axes[any(word in parameter.name for word in BY_COLUMNS)] = [0]
    return SimpleNamespace(
        dev_matrix=[case.ranks // case.stages // case.tensor, 1, case.tensor],
        tensor_map=axes,
        rank_list=ranks_with(case, parameter.name),
        opt_weight_shard_size=-1 if case.divides_optimizer and len(axes) == 2 else 0,
        tensor_type=str(parameter.dtype),
        tensor_shape=list(parameter.shape),
    )


def slice_of(array: npt.NDArray[Any], shard: Any, rank: int) -> npt.NDArray[Any]:
    """What a rank has of an array that may be divided."""
    from mindformers.checkpoint.reshard import infer_slice_area_by_rank

    if shard is None or shard.layout is None:
        return array
    layout = shard.layout.to_dict()
    place = layout["rank_list"].index(rank)
    area = infer_slice_area_by_rank(layout["device_matrix"], layout["tensor_map"], place, array.shape)
    return array[tuple(slice(*bounds) for bounds in area)]


if __name__ == "__main__":
    default = DESCRIPTIONS if version("mindformers").startswith("2.1") else FIXTURE
    main(Path(sys.argv[1]) if sys.argv[1:] else default)
