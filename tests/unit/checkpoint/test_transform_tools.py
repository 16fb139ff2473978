"""tools/transform_ckpt.py and tools/transform_ckpt_lora.py, with the flags of MindFormers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transform_ckpt
import transform_ckpt_lora
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.ckpt_writer import ckpt_layout
from mindbatch.checkpoint.formats.file_layout import write_tensor_file
from mindbatch.checkpoint.formats.float_rounding import array_type
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy
from mindbatch.checkpoint.strategy.tensor_layout import TensorLayout
from mindbatch.checkpoint.strategy.wire_form import strategy_bytes

TOOLS = Path(transform_ckpt.__file__).parent
RANK, ALPHA = 2, 8
# By rows, by columns, not cut.
CUTS = {"wq": (0, -1), "wo": (-1, 0), "norm": (-1,)}
SHAPES = {
    "model.layers.0.attention.wq.weight": (8, 12),
    "model.layers.0.attention.wo.weight": (12, 8),
    "model.norm_out.weight": (8,),
    "model.layers.0.attention.wq.mindpet_delta_lora_a": (RANK, 12),
    "model.layers.0.attention.wq.mindpet_delta_lora_b": (8, RANK),
    "model.layers.0.attention.wo.mindpet_delta_lora_a": (RANK, 8),
    "model.layers.0.attention.wo.mindpet_delta_lora_b": (12, RANK),
}
MATRIX_CUTS = {"wq.a": (-1, -1), "wq.b": (0, -1), "wo.a": (-1, 0), "wo.b": (-1, -1)}
BASE = [name for name in SHAPES if "lora" not in name]


def tensor_map(name):
    module = name.split(".")[-2]
    if "lora" in name:
        return MATRIX_CUTS[f"{module}.{name[-1]}"]
    return CUTS.get(module, CUTS["norm"])


def strategy_of(ranks, names=SHAPES):
    layouts = tuple(TensorLayout(name, (ranks,), tensor_map(name)) for name in names)
    return Strategy(layouts, (OperatorStrategy("MatMul-op0", 0),))


def write_strategy(path, ranks, names=SHAPES):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(strategy_bytes(strategy_of(ranks, names)))
    return path


def arrays():
    random = np.random.default_rng(2)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def part_of(name, array, ranks, rank):
    layout = TensorLayout(name, (ranks,), tensor_map(name))
    return np.ascontiguousarray(array[layout.slice_of(rank, array.shape)])


def write_ckpt(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = ckpt_layout([(name, "F32", array.shape) for name, array in tensors.items()])
    write_tensor_file(path, layout, lambda name: [tensors[name].tobytes()])


def write_ranks(folder, ranks, tensors):
    for rank in range(ranks):
        parts = {name: part_of(name, array, ranks, rank) for name, array in tensors.items()}
        write_ckpt(folder / f"rank_{rank}" / f"checkpoint_{rank}.ckpt", parts)
    return folder


def read(path):
    with open_source(path) as source:
        [tensors] = source.ranks
        found = {}
        for name, info in tensors.tensors.items():
            data = bytearray(info.nbytes)
            tensors.read_into(name, 0, memoryview(data))
            found[name] = np.frombuffer(data, array_type(info.dtype)).reshape(info.shape)
        return found


def assert_ranks(folder, ranks, tensors, suffix="ckpt"):
    assert sorted(path.name for path in folder.glob("rank_*")) == [f"rank_{rank}" for rank in range(ranks)]
    for rank in range(ranks):
        found = read(folder / f"rank_{rank}" / f"checkpoint_{rank}.{suffix}")
        assert set(found) == set(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], part_of(name, array, ranks, rank), err_msg=name)


@pytest.fixture
def place(tmp_path):
    """Strategies and rank folders for 2 ranks, strategies for 4."""
    write_strategy(tmp_path / "two.ckpt", 2)
    write_strategy(tmp_path / "four.ckpt", 4)
    write_ranks(tmp_path / "two", 2, arrays())
    write_ckpt(tmp_path / "full.ckpt", arrays())
    return tmp_path


def transform(place, source, target, source_strategy, target_strategy, *more):
    return transform_ckpt.main(
        [
            f"--src_ckpt_dir={place / source}",
            f"--dst_ckpt_dir={place / target}",
            f"--src_ckpt_strategy={source_strategy and place / source_strategy}",
            f"--dst_ckpt_strategy={target_strategy and place / target_strategy}",
            *more,
        ]
    )


@pytest.mark.parametrize(("target", "ranks"), [("four.ckpt", 4), ("", 1)])
def test_from_two_ranks(place, target, ranks):
    assert transform(place, "two", "new", "two.ckpt", target) == 0
    assert_ranks(place / "new", ranks, arrays())


def test_from_a_whole_file(place, capsys):
    assert transform(place, "full.ckpt", "new", "", "two.ckpt") == 0
    assert_ranks(place / "new", 2, arrays())
    assert f"2 ranks in {place / 'new'}" in capsys.readouterr().out
    assert transform(place, "full.ckpt", "new", "", "two.ckpt") == 0
    assert "Was made already" in capsys.readouterr().out


def test_none_is_the_word_for_a_checkpoint_that_is_not_cut(place):
    flags = ["--src_ckpt_dir", str(place / "two"), "--dst_ckpt_dir", str(place / "new")]
    strategies = ["--src_ckpt_strategy", str(place / "two.ckpt"), "--dst_ckpt_strategy", "None"]
    assert transform_ckpt.main([*flags, *strategies, "--prefix", "llama_"]) == 0
    assert (place / "new/rank_0/llama_0.ckpt").is_file()


def test_a_folder_of_strategies_is_read_and_left_alone(place):
    """Also where MindFormers' tool was at work before."""
    folder = write_strategy(place / "strategies/ckpt_strategy_rank_0.ckpt", 2).parent
    write_strategy(folder / "merged_ckpt_strategy.ckpt", 4)
    before = {path.name for path in folder.iterdir()}
    assert transform(place, "two", "new", "strategies", "four.ckpt") == 0
    assert_ranks(place / "new", 4, arrays())
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("source", ["two", "full.ckpt"])
def test_the_other_kind_of_flags(place, source, capsys, monkeypatch):
    flags = [f"--src_checkpoint={place / source}", f"--dst_strategy={place / 'four.ckpt'}", "--world_size=4"]
    flags += [f"--src_strategy={place / 'two.ckpt'}"]
    monkeypatch.chdir(place)
    assert transform_ckpt.main([*flags, "--rank_id=2", "--transform_process_num=2"]) == 0
    assert "--rank_id 2: nothing to do" in capsys.readouterr().err
    assert transform_ckpt.main(flags) == 0
    assert_ranks(place / "transformed_checkpoint" / source.split(".")[0], 4, arrays())
    is_noted = "holds one rank, so it is whole" in capsys.readouterr().err
    assert is_noted is (source == "full.ckpt")


def test_several_processes_make_the_same(place):
    assert transform(place, "two", "new", "two.ckpt", "four.ckpt", "--transform_process_num=2") == 0
    assert_ranks(place / "new", 4, arrays())


def test_more_ranks_than_files_may_be_open(place):
    """Up to what the system allows; many systems begin with 1024."""
    layouts = tuple(TensorLayout(name, (150,), (-1,) * len(shape)) for name, shape in SHAPES.items())
    many = Strategy(layouts, (OperatorStrategy("MatMul-op0", 0),))
    (place / "many.ckpt").write_bytes(strategy_bytes(many))
    for source, target, strategy in (("two", "many", "many"), ("many", "back", "two")):
        command = [sys.executable, str(TOOLS / "transform_ckpt.py"), "--transform_process_num=2"]
        command += [f"--src_ckpt_dir={place / source}", f"--src_ckpt_strategy={place / source}.ckpt"]
        command += [f"--dst_ckpt_dir={place / target}", f"--dst_ckpt_strategy={place / strategy}.ckpt"]
        done = subprocess.run(
            ["bash", "-c", 'ulimit -S -n 100; exec "$@"', "-", *command], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert_ranks(place / "back", 2, arrays())


def test_as_a_command_without_mindspore(place):
    """-S leaves installed packages out of the path, but for NumPy."""
    numpy = Path(np.__file__).parents[1]
    (place / "only").mkdir()
    (place / "only/numpy").symlink_to(numpy / "numpy")
    for path in numpy.glob("numpy.libs"):
        (place / "only" / path.name).symlink_to(path)
    command = [sys.executable, "-S", str(TOOLS / "transform_ckpt.py")]
    flags = [f"--src_ckpt_dir={place / 'two'}", f"--dst_ckpt_dir={place / 'new'}"]
    flags += [f"--src_ckpt_strategy={place / 'two.ckpt'}", f"--dst_ckpt_strategy={place / 'four.ckpt'}"]
    done = subprocess.run(
        [*command, *flags], env={"PYTHONPATH": str(place / "only")}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_ranks(place / "new", 4, arrays())


def failed(code, expected, capsys, *parts):
    error = capsys.readouterr().err
    assert code == expected, error
    for part in parts:
        assert part in error
    assert all(line.startswith("transform_ckpt") for line in error.splitlines())


def test_every_fault_in_the_flags_is_told(place, capsys):
    flags = ["--prefix=../x", "--transform_process_num=0", "--src_ckpt_strategy=/no/where"]
    failed(
        transform_ckpt.main(flags), 2, capsys, "--prefix '../x'", "--transform_process_num 0",
        "--src_ckpt_dir must be given", "--dst_ckpt_dir must be given", "/no/where: no such file",
    )  # fmt: skip
    failed(transform(place, "two", "new", "", ""), 2, capsys, "one of them must be given")
    both = [f"--src_ckpt_dir={place}", f"--src_checkpoint={place}", "--dst_strategy=x"]
    failed(transform_ckpt.main(both), 2, capsys, "must be of one kind")


def test_abbreviated_flags_are_refused(place):
    with pytest.raises(SystemExit):
        transform_ckpt.main(["--src_ckpt_d=x"])


def test_sources_that_do_not_fit_are_refused(place, capsys):
    failed(transform(place, "two", "new", "", "four.ckpt"), 2, capsys, "2 ranks; the strategy of the source")
    failed(transform(place, "two", "new", "four.ckpt", ""), 1, capsys, "2 ranks; the strategy is for 4")
    world = transform(place, "two", "new", "two.ckpt", "four.ckpt", "--world_size=8")
    failed(world, 2, capsys, "--world_size 8: the strategy of the target has 4 ranks")
    assert not (place / "new").exists()


def test_what_is_left_of_several_ranks_is_not_taken_as_whole(place, capsys):
    """MindFormers' rule is that one rank is whole; its shapes say otherwise."""
    shutil.rmtree(place / "two/rank_1")
    said = "holds one rank of the 2 that the strategy is for; tensor"
    for target in ("four.ckpt", ""):
        failed(transform(place, "two", "new", "two.ckpt", target), 1, capsys, said)
    failed(merge(place, "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=1"), 1, capsys, said)
    file = "two/rank_0/checkpoint_0.ckpt"
    failed(transform(place, file, "new", "two.ckpt", "four.ckpt"), 1, capsys, said)
    assert not (place / "new").exists()
    write_ranks(place / "one", 1, arrays())
    assert transform(place, "one", "new", "two.ckpt", "four.ckpt") == 0
    assert "holds one rank, so it is whole" in capsys.readouterr().err
    assert_ranks(place / "new", 4, arrays())


def test_nothing_is_written_over(place, capsys):
    (place / "new").mkdir()
    (place / "new/mine").write_text("kept")
    failed(transform(place, "two", "new", "two.ckpt", "four.ckpt"), 2, capsys, "give another folder")
    assert [path.name for path in (place / "new").iterdir()] == ["mine"]


# ---- transform_ckpt_lora.py


def merged_arrays(scaling):
    found = arrays()
    for module in ("wq", "wo"):
        name = f"model.layers.0.attention.{module}"
        b, a = (found[f"{name}.mindpet_delta_lora_{which}"] for which in "ba")
        found[f"{name}.weight"] = found[f"{name}.weight"] + np.float32(scaling) * (b @ a)
    return {name: found[name] for name in BASE}


def merge(place, source, target, source_strategy, target_strategy, *more):
    return transform_ckpt_lora.main(
        [
            f"--src_ckpt_path_or_dir={place / source}",
            f"--dst_ckpt_dir={place / target}",
            f"--src_ckpt_strategy={source_strategy and place / source_strategy}",
            f"--dst_ckpt_strategy={target_strategy and place / target_strategy}",
            *more,
        ]
    )


def write_config(place, folder, **changes):
    config = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "wq|wo", **changes}
    (place / folder / "adapter_config.json").write_text(json.dumps(config))


def test_all_ranks_are_merged(place):
    """MindFormers' tool merges rank 0 alone."""
    assert merge(place, "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=0.5") == 0
    assert_ranks(place / "new", 4, merged_arrays(0.5))
    with open_source(place / "new", verify=True) as source:
        assert all(rank.digests for rank in source.ranks)


def test_what_a_killed_merge_has_left_goes_and_nothing_else(place, capsys):
    part = place / "new.part"
    part.mkdir()
    (part / ".checkpoint_0.ckpt.0123456789abcdef").write_bytes(b"left")
    assert merge(place, "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=2") == 0
    part.mkdir()
    (part / ".mine").write_bytes(b"kept")
    (place / "new").rename(place / "old")
    said = "holds '.mine', which is not of this merge"
    failed(merge(place, "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=2"), 2, capsys, said)
    assert (part / ".mine").read_bytes() == b"kept"


def test_the_scaling_is_that_of_the_adapter(place, capsys):
    write_config(place, "two")
    assert merge(place, "two", "new", "two.ckpt", "four.ckpt") == 0
    assert_ranks(place / "new", 4, merged_arrays(ALPHA / RANK))
    failed(
        merge(place, "two", "other", "two.ckpt", "four.ckpt", "--lora_scaling=1"), 2, capsys,
        "--lora_scaling 1:", "adapter_config.json says 4",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["ckpt", "safetensors"])
def test_one_rank_is_one_file(place, kind, capsys):
    assert merge(place, "two", "new", "two.ckpt", "None", "--lora_scaling=2", f"--save_format={kind}") == 2
    assert "no such file" in capsys.readouterr().err
    assert merge(place, "two", "new", "two.ckpt", "", "--lora_scaling=2", f"--save_format={kind}") == 0
    assert {path.name for path in (place / "new").iterdir()} == {f"merged_lora.{kind}", "digests.json"}
    found = read(place / f"new/merged_lora.{kind}")
    for name, array in merged_arrays(2).items():
        np.testing.assert_array_equal(found[name], array)
    assert "Merge succeed: 2 weights, scaling 2, 1 rank in" in capsys.readouterr().out


def test_a_file_is_only_merged(place):
    assert merge(place, "full.ckpt", "new", "", "", "--lora_scaling=2") == 0
    assert set(read(place / "new/merged_lora.ckpt")) == set(BASE)


def test_no_scaling_is_guessed(place, capsys):
    failed(
        merge(place, "two", "new", "two.ckpt", ""), 2, capsys,
        "no adapter_config.json", "give --lora_scaling: lora_alpha / 2",
    )  # fmt: skip
    failed(merge(place, "two", "new", "two.ckpt", "", "--lora_scaling=0"), 2, capsys, "other than 0")


def test_states_of_the_optimizer_are_kept_but_for_those_of_the_matrices(place, capsys):
    tensors = arrays()
    tensors |= {f"adam_m.{name}": array for name, array in arrays().items()}
    write_ckpt(place / "trained.ckpt", tensors)
    assert merge(place, "trained.ckpt", "new", "", "", "--lora_scaling=2") == 0
    assert set(read(place / "new/merged_lora.ckpt")) == {*BASE, *(f"adam_m.{name}" for name in BASE)}
    assert "4 tensors of the optimizer" in capsys.readouterr().err


def changed_source(place, change):
    tensors = arrays()
    change(tensors)
    write_ckpt(place / "changed.ckpt", tensors)
    return merge(place, "changed.ckpt", "new", "", "", "--lora_scaling=2")


A, B = (f"model.layers.0.attention.wq.mindpet_delta_lora_{which}" for which in "ab")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(B), "its other half is missing"),
        (lambda tensors: tensors.pop("model.layers.0.attention.wq.weight"), "the model has no"),
        (lambda tensors: tensors.update({B: np.ones((8, 3), np.float32)}), "[outputs, r] with r=2"),
        (lambda tensors: tensors.update({A: np.ones((2, 11), np.float32)}), "are for a weight of [8, 11]"),
        (lambda tensors: tensors.update({A: tensors[A] * np.inf}), "infinite or no numbers"),
        (lambda tensors: tensors.update({n: t * 0 for n, t in tensors.items() if "_b" in n}), "no effect"),
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if "lora" in name], "holds no lora_a"),
        (lambda tensors: tensors.update({"x.lora_c": np.ones(2, np.float32)}), "'x.lora_c': not understood"),
    ],
    ids=lambda value: value if isinstance(value, str) else "so changed",
)
def test_matrices_that_are_refused(place, change, message, capsys):
    failed(changed_source(place, change), 1, capsys, message)
    assert not (place / "new").exists()


def test_the_merge_writes_nothing_over(place, capsys):
    (place / "new").mkdir()
    (place / "new/mine").write_text("kept")
    failed(merge(place, "full.ckpt", "new", "", "", "--lora_scaling=2"), 2, capsys, "exists already")
    (place / "other.part").mkdir()
    (place / "other.part/mine").write_text("kept")
    failed(merge(place, "full.ckpt", "other", "", "", "--lora_scaling=2"), 2, capsys, "holds 'mine'")
    assert (place / "other.part/mine").read_text() == "kept"


def test_what_a_killed_merge_has_left_is_made_anew(place):
    (place / "new.part").mkdir()
    (place / "new.part/merged_lora.ckpt").write_text("torn")
    (place / "new.part/digests.json").write_text("torn")
    assert merge(place, "full.ckpt", "new", "", "", "--lora_scaling=2") == 0
    assert set(read(place / "new/merged_lora.ckpt")) == set(BASE)
    assert not (place / "new.part").exists()


def test_an_interrupt_is_one_line(place, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for tool in (transform_ckpt, transform_ckpt_lora):
        monkeypatch.setattr(tool, "open_transform", interrupted)
    code = transform(place, "two", "new", "two.ckpt", "four.ckpt")
    assert (code, capsys.readouterr().err) == (
        130,
        "transform_ckpt.py: interrupted; the same command goes on\n",
    )
    code = merge(place, "two", "new", "two.ckpt", "four.ckpt")
    assert (code, capsys.readouterr().err) == (
        130,
        "transform_ckpt_lora.py: interrupted; the same command begins anew\n",
    )


def test_the_merge_as_a_command(place):
    command = [sys.executable, str(TOOLS / "transform_ckpt_lora.py"), "--lora_scaling", "1.5"]
    flags = ["--src_ckpt_path_or_dir", str(place / "full.ckpt"), "--dst_ckpt_dir", str(place / "new")]
    done = subprocess.run([*command, *flags], cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scaling 1.5" in done.stdout
