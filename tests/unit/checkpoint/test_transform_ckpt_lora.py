"""tools/transform_ckpt_lora.py, with the flags of MindFormers."""

import json

import numpy as np
import pytest
from transform_places import (
    ALPHA,
    BASE,
    RANK,
    arrays,
    assert_ranks,
    failed,
    lay_out,
    merge,
    read,
    write_ckpt,
)

import transform_ckpt_lora
from harness.reshard_kills import files_of
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.reshard.journal import Journal
from verified_sources import open_verified


@pytest.fixture
def place(tmp_path):
    return lay_out(tmp_path)


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
