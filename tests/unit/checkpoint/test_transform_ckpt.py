"""tools/transform_ckpt.py and tools/transform_ckpt_lora.py, with the flags of MindFormers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transform_places import (
    ALPHA,
    BASE,
    RANK,
    SHAPES,
    TOOLS,
    arrays,
    assert_ranks,
    failed,
    lay_out,
    merge,
    read,
    transform,
    write_ckpt,
    write_ranks,
    write_strategy,
)

import transform_ckpt
import transform_ckpt_lora
from harness.reshard_kills import files_of
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.resharded import reshard_command
from mindbatch.checkpoint.reshard.journal import Journal
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from verified_sources import open_verified


@pytest.fixture
def place(tmp_path):
    return lay_out(tmp_path)


@pytest.mark.parametrize(("target", "ranks"), [("four.ckpt", 4), ("", 1)])
def test_from_two_ranks(place, target, ranks):
    assert transform(place, "two", "new", "two.ckpt", target) == 0
    assert_ranks(place / "new", ranks, arrays())


def test_from_a_whole_file(place, capsys):
    assert transform(place, "full.ckpt", "new", "", "two.ckpt") == 0
    assert_ranks(place / "new", 2, arrays())
    assert f"2 ranks in {place / 'new'}" in capsys.readouterr().out
    assert f"source_strategy={place / 'two.ckpt'}" in reshard_command(place / "new")
    assert transform(place, "full.ckpt", "new", "", "two.ckpt") == 0
    assert "Already exists" in capsys.readouterr().out


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
    flags += [f"--src_strategy={place / 'two.ckpt'}"] if source == "two" else []
    monkeypatch.chdir(place)
    assert transform_ckpt.main([*flags, "--rank_id=2", "--transform_process_num=2"]) == 0
    assert "--rank_id 2: nothing to do" in capsys.readouterr().err
    assert transform_ckpt.main(flags) == 0
    assert_ranks(place / "transformed_checkpoint" / source.split(".")[0], 4, arrays())


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "source", "needed"),
    [("transform_ckpt", "dir", ["numpy"]), ("transform_ckpt_lora", "path_or_dir", ["numpy", "regex"])],
)
def test_as_a_command_without_mindspore(place, tool, source, needed):
    """-S leaves installed packages out of the path, but for those that are needed."""
    packages = Path(np.__file__).parents[1]
    (place / "only").mkdir()
    for path in (*map(packages.joinpath, needed), *packages.glob("numpy.libs")):
        (place / "only" / path.name).symlink_to(path)
    command = [sys.executable, "-S", str(TOOLS / f"{tool}.py")]
    flags = [f"--src_ckpt_{source}={place / 'two'}", f"--dst_ckpt_dir={place / 'new'}"]
    flags += [f"--src_ckpt_strategy={place / 'two.ckpt'}", f"--dst_ckpt_strategy={place / 'four.ckpt'}"]
    flags += ["--lora_scaling=1.5"] if tool.endswith("lora") else []
    done = subprocess.run(
        [*command, *flags], env={"PYTHONPATH": str(place / "only")}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"4 ranks in {place / 'new'}\n")


def test_every_fault_in_the_flags_is_told(place, capsys):
    flags = ["--prefix=../x", "--transform_process_num=0", "--src_ckpt_strategy=/no/where"]
    failed(
        transform_ckpt.main(flags), 2, capsys, "--prefix '../x'", "--transform_process_num 0",
        "--src_ckpt_dir must be given", "--dst_ckpt_dir must be given", "/no/where: no such file",
    )  # fmt: skip
    failed(transform(place, "two", "new", "", ""), 2, capsys, "one of them must be given")
    both = [f"--src_ckpt_dir={place}", f"--src_checkpoint={place}", "--dst_strategy=x"]
    failed(transform_ckpt.main(both), 2, capsys, "only one kind of flags is allowed")
    with pytest.raises(SystemExit):
        transform_ckpt.main(["--src_ckpt_d=x"])  # no flag is abbreviated


def test_sources_that_do_not_fit_are_refused(place, capsys):
    failed(transform(place, "two", "new", "", "four.ckpt"), 2, capsys, "2 ranks; the strategy of the source")
    failed(transform(place, "two", "new", "four.ckpt", ""), 1, capsys, "2 ranks; the strategy is for 4")
    world = transform(place, "two", "new", "two.ckpt", "four.ckpt", "--world_size=8")
    failed(world, 2, capsys, "--world_size 8: the strategy of the target has 4 ranks")
    assert not (place / "new").exists()


@pytest.mark.parametrize("tool", [transform, merge])
@pytest.mark.parametrize("target", ["four.ckpt", ""])
def test_what_is_left_of_several_ranks_is_not_taken_as_whole(place, capsys, tool, target):
    """As MindFormers does, whatever the strategy says."""
    shutil.rmtree(place / "two/rank_1")
    write_ranks(place / "one", 1, arrays())
    message = "1 rank; the strategy is for 2; if this one is the whole, give no strategy for the source"
    for source in ("two", "two/rank_0/checkpoint_0.ckpt", "one"):
        failed(tool(place, source, "new", "two.ckpt", target), 1, capsys, message)
    assert not (place / "new").exists()


def test_one_rank_that_is_the_whole_needs_no_strategy(place):
    write_ranks(place / "one", 1, arrays())
    assert transform(place, "one", "new", "", "four.ckpt") == 0
    assert_ranks(place / "new", 4, arrays())


@pytest.mark.parametrize("tool", [transform, merge])
def test_nothing_is_written_over(place, capsys, tool):
    (place / "new").mkdir()
    (place / "new/mine").write_text("kept")
    failed(tool(place, "two", "new", "two.ckpt", "four.ckpt"), 2, capsys, "another folder")
    assert [path.name for path in (place / "new").iterdir()] == ["mine"]


@pytest.mark.parametrize(("tool", "module"), [(transform, transform_ckpt), (merge, transform_ckpt_lora)])
def test_an_interrupt_is_one_line(place, capsys, monkeypatch, tool, module):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "open_transform", interrupted)
    code = tool(place, "two", "new", "two.ckpt", "four.ckpt")
    message = f"{module.__name__}.py: interrupted; the same command resumes\n"
    assert (code, capsys.readouterr().err) == (130, message)


def merged_arrays(scaling):
    found = arrays()
    for module in ("wq", "wo"):
        name = f"model.layers.0.attention.{module}"
        b, a = (found[f"{name}.mindpet_delta_lora_{which}"] for which in "ba")
        found[f"{name}.weight"] = found[f"{name}.weight"] + np.float32(scaling) * (b @ a)
    return {name: found[name] for name in BASE}


def write_config(place, folder, **changes):
    config = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "wq|wo", **changes}
    (place / folder / "adapter_config.json").write_text(json.dumps(config))


def test_all_ranks_are_merged(place):
    """MindFormers' tool merges rank 0 alone."""
    assert merge(place, "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=0.5") == 0
    assert_ranks(place / "new", 4, merged_arrays(0.5))
    with open_verified(place / "new") as source:
        assert all(rank.digests for rank in source.ranks)


@pytest.mark.slow
def test_a_killed_merge_goes_on(place, capsys, monkeypatch):
    """Whatever was in the files before the kill is kept, in as many processes."""
    flags = "two", "new", "two.ckpt", "four.ckpt", "--lora_scaling=2"
    assert merge(place, *flags) == 0
    expected = files_of(place / "new")
    (place / "new").rename(place / "unbroken")
    written = []

    def killed(self, entries):
        written.extend(entries)
        append(self, entries)
        raise KeyboardInterrupt

    append = Journal.append
    monkeypatch.setattr(Journal, "append", killed)
    assert merge(place, *flags) == 130
    assert written
    monkeypatch.undo()
    monkeypatch.setattr(transform_ckpt_lora, "worker_count", lambda *_: 2)
    assert merge(place, *flags) == 0
    assert files_of(place / "new") == expected
    assert merge(place, *flags[:1], "other", *flags[2:-1], "--lora_scaling=1") == 0
    (place / "other").rename(place / "new.part")
    (place / "new").rename(place / "again")
    capsys.readouterr()
    assert merge(place, *flags) == 0  # what another scaling has left is not taken
    assert files_of(place / "new") == expected


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
    assert {path.name for path in (place / "new").iterdir()} == {
        f"merged_lora.{kind}", "digests.json", "reshard.json",
    }  # fmt: skip
    found = read(place / f"new/merged_lora.{kind}")
    for name, array in merged_arrays(2).items():
        np.testing.assert_array_equal(found[name], array)
    assert "Merge succeed: 2 weights, scaling 2, 1 rank in" in capsys.readouterr().out


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
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if "lora" in name], "holds no lora_a"),
        (lambda tensors: tensors.update({"x.lora_c": np.ones(2, np.float32)}), "'x.lora_c': not understood"),
    ],
    ids=lambda value: value if isinstance(value, str) else "so changed",
)
def test_matrices_that_are_refused(place, change, message, capsys):
    failed(changed_source(place, change), 1, capsys, message)
    assert not (place / "new").exists()


@pytest.mark.parametrize("name", [A, "model.layers.0.attention.wq.weight"])
def test_a_flipped_bit_is_found_with_digests(place, name, capsys):
    file = place / "home/trained.ckpt"
    file.parent.mkdir()
    write_ckpt(file, arrays())
    record_digests(file.parent)
    content = bytearray(file.read_bytes())
    content[content.index(arrays()[name].tobytes())] ^= 1
    file.write_bytes(content)
    code = merge(place, "home/trained.ckpt", "new", "", "", "--lora_scaling=2")
    failed(code, 1, capsys, f"{file}: tensor '{name}' is damaged")
    assert not (place / "new").exists()
