"""Strategy files against MindSpore: its parser reads what is written here, its slices are those said here."""

import json
import os

import mindspore as ms
import numpy as np
import pytest
from mindspore.parallel import transform_safetensors
from mindspore.parallel._parallel_serialization import _build_searched_strategy, _convert_to_list
from mindspore.parallel._tensor import _load_tensor
from mindspore.train.node_strategy_pb2 import ParallelStrategyMap
from safetensors.numpy import save_file

from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_bytes

LAYOUTS = (
    TensorLayout("columns", (2, 4), (0, -1)),
    TensorLayout("rows", (2, 4), (-1, 0)),
    TensorLayout("both", (2, 4), (0, 1)),
    TensorLayout("turned", (2, 4), (1, 0)),
    TensorLayout("vector", (2, 4), (0,)),
    TensorLayout("whole", (2, 4), (-1, -1)),
    TensorLayout("nested", (2, 4), ((1, 0), -1)),
    TensorLayout("nested.turned", (2, 4), (-1, (0, 1))),
    TensorLayout("shard", (2, 4), (0, -1), opt_shard_step=4, opt_shard_size=2),
    TensorLayout("shard.all", (2, 4), (-1, -1), opt_shard_step=1, opt_shard_size=-1),
    TensorLayout("shard.some", (2, 4), (-1, -1), opt_shard_step=1, opt_shard_size=4),
    TensorLayout("shard.part", (2, 4), (1, -1), opt_shard_step=1, opt_shard_size=2),
)
SHAPES = {layout.name: (16, 16)[: len(layout.tensor_map)] for layout in LAYOUTS}


def value_of(name):
    shape = SHAPES[name]
    values = np.arange(np.prod(shape)).reshape(shape) + sum(map(ord, name)) * 1000
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def strategy():
    return Strategy(LAYOUTS, (OperatorStrategy("MatMul-op0", 0, ((1, 4), (4, 1))),))


@pytest.fixture(scope="module")
def path(strategy, tmp_path_factory):
    path = tmp_path_factory.mktemp("strategy") / "ckpt_strategy_rank_0.ckpt"
    path.write_bytes(strategy_bytes(strategy))
    return path


def test_mindspore_reads_what_is_written_here(path):
    found = _convert_to_list(_build_searched_strategy(str(path)))
    assert list(found) == [layout.name for layout in LAYOUTS]
    for layout in LAYOUTS:
        matrix, tensor_map, split, field, step, size, stages = found[layout.name]
        assert (tuple(matrix), split, field, stages) == (layout.device_matrix, [], 0, [0])
        assert (step, size) == (layout.opt_shard_step, layout.opt_shard_size)
        flat = [(each,) if isinstance(each, int) else tuple(each) for each in tensor_map]
        assert flat == [(each,) if isinstance(each, int) else each for each in layout.tensor_map]


def test_it_is_read_back_and_written_as_protobuf_writes_it(path, strategy):
    assert read_strategy(path) == strategy
    message = ParallelStrategyMap()
    message.ParseFromString(path.read_bytes())
    assert message.IsInitialized()
    assert message.SerializeToString() == path.read_bytes()


def test_json_that_mindspore_reads_is_read_the_same(path, tmp_path):
    items = {
        layout.name: {
            "dev_matrix": [*layout.device_matrix], "tensor_map": [*layout.tensor_map], "field": layout.field,
            "opt_weight_shard_step": layout.opt_shard_step, "opt_weight_shard_size": layout.opt_shard_size,
        }
        for layout in LAYOUTS if "nested" not in layout.name
    }  # fmt: skip
    content = {"parallel_layout_item": items, "parallel_strategy_item": {"MatMul-op0": {"stage": 0}}}
    (tmp_path / "s.json").write_text(json.dumps(content))
    assert set(_build_searched_strategy(str(tmp_path / "s.json"))) == set(items)
    expected = [layout for layout in LAYOUTS if "nested" not in layout.name]
    assert list(read_strategy(tmp_path / "s.json").layouts) == expected


@pytest.mark.parametrize("layout", LAYOUTS[:6], ids=lambda layout: layout.name)
def test_slices_are_those_that_mindspore_loads(layout):
    whole = value_of(layout.name)
    for rank in range(8):
        theirs = _load_tensor(ms.Tensor(whole), layout.device_matrix, layout.tensor_map, None, rank)
        np.testing.assert_array_equal(whole[layout.slice_of(rank, whole.shape)], theirs)


@pytest.fixture
def contiguous_arrays_only(monkeypatch):
    """safetensors 0.8 writes wrong bytes, and no error, for the strided arrays that MindSpore hands it."""

    def save_contiguous(tensors, *arguments, **options):
        whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        return save_file(whole, *arguments, **options)

    monkeypatch.setattr(transform_safetensors, "save_file", save_contiguous)


@pytest.mark.usefixtures("contiguous_arrays_only")
@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_transform_checkpoints_cuts_the_same_slices(path, strategy, tmp_path, suffix):
    """MindSpore's own tool, from the full checkpoint to all eight ranks."""
    source, target = tmp_path / "full/rank_0", tmp_path / "cut"
    os.makedirs(source)
    params = [{"name": name, "data": ms.Tensor(value_of(name))} for name in SHAPES]
    ms.save_checkpoint(params, str(source / f"m0.{suffix}"), format=suffix)
    ms.transform_checkpoints(
        str(tmp_path / "full"), str(target), "cut", None, str(path), process_num=1, output_format=suffix
    )
    with open_source(target) as cut:
        assert len(cut.ranks) == strategy.num_ranks == 8
        for rank, tensors in enumerate(cut.ranks):
            layouts = strategy.of_rank(rank)
            assert set(tensors.tensors) == set(layouts)
            for name, layout in layouts.items():
                part = value_of(name)[layout.slice_of(rank, SHAPES[name])]
                assert tensors.info(name).shape == part.shape == layout.local_shape(SHAPES[name])
                content = bytearray(part.nbytes)
                tensors.read_into(name, 0, memoryview(content))
                np.testing.assert_array_equal(
                    np.frombuffer(content, np.float32).reshape(part.shape), part, name
                )


def test_pipeline_stages_are_merged_as_mindspore_does(tmp_path):
    os.makedirs(tmp_path / "stages")
    for stage in range(2):
        layouts = (TensorLayout("tied", (2,), (0, -1)), TensorLayout(f"layer.{stage}", (2,), (-1, 0)))
        strategy = Strategy(layouts, (OperatorStrategy(f"op{stage}", stage),))
        for rank in range(2):
            name = f"ckpt_strategy_rank_{2 * stage + rank}.ckpt"
            (tmp_path / "stages" / name).write_bytes(strategy_bytes(strategy))
    ms.merge_pipeline_strategys(str(tmp_path / "stages"), str(tmp_path / "merged.ckpt"))
    merged = read_strategy(tmp_path / "merged.ckpt")
    ours = read_strategy(tmp_path / "stages")  # by stage; MindSpore takes the files as they come
    assert [ours.of_stage(stage) for stage in range(2)] == [merged.of_stage(stage) for stage in range(2)]
    assert merged.stages == ours.stages == (0, 1)
    assert merged.num_ranks == 4
    assert set(merged.of_rank(1)) == {"tied", "layer.0"}
    assert set(merged.of_rank(2)) == {"tied", "layer.1"}
    assert strategy_bytes(merged) == (tmp_path / "merged.ckpt").read_bytes()
