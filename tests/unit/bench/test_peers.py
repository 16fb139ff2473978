"""The peers benchmark: bounds, ratios, and the reason why a side did not run."""

from pathlib import Path

import pytest

from bench.peers.peer import padded_batches
from bench.peers.sides import SIDES, Bench, Side
from bench.peers.table import Figures, Machine, bounds, cases_of, page, sizes_of

ROWS = [{"prompt": [1] * size, "answer_tokens": wanted} for size, wanted in ((3, 2), (1, 4), (2, 1))]


def figures(**values: float) -> Figures:
    found = Figures()
    for case, value in values.items():
        found.note(case, value)
    return found


def test_bounds_are_the_bytes_and_the_operations_of_the_matrices() -> None:
    config = {
        "model_type": "gpt2",
        "vocab_size": 10,
        "n_embd": 4,
        "n_positions": 5,
        "n_layer": 3,
        "n_head": 2,
    }
    sizes = sizes_of(config, 4 * (10 * 4 + 5 * 4 + 100))
    machine = Machine(bandwidth=1000, flops=1e9)
    whole, half = (bounds(sizes, machine, {3: ROWS}, [50], kind) for kind in ("float32", "bfloat16"))
    assert whole.median("decode 1 ms") == pytest.approx(1e3 * 140 * 4 / 1000)
    assert half.median("decode 1 ms") == pytest.approx(1e3 * 140 * 2 / 1000)
    # 50 tokens with 3 layers' keys and values of 4 numbers
    assert whole.median("decode 1 at 50 ms") == pytest.approx(1e3 * (140 + 50 * 24) * 4 / 1000)
    assert half.median("decode 1 at 50 ms") == pytest.approx(1e3 * (140 + 50 * 24) * 2 / 1000)
    assert whole.median("prefill 50 ms") == pytest.approx(1e3 * 2 * (50 * 100 + 40) / 1e9)
    # 6 prompt tokens and 7 answers, of which the last three are not computed on; 7 rows of logits
    assert whole.median("3 rows, warm s") == pytest.approx(2 * (10 * 100 + 7 * 40) / 1e9)
    assert half.median("3 rows, warm s") is None
    # 13 tokens with 3 layers' keys and values of 4 numbers
    assert whole.median("peak MB") == pytest.approx((160 * 4 + 13 * 24 * 4) / 1e6)
    assert half.median("peak MB") == pytest.approx((160 * 2 + 13 * 24 * 2) / 1e6)


def test_ratios_are_of_medians_and_a_missing_figure_has_its_reason() -> None:
    ours, theirs = figures(a=1), figures(a=4)
    ours.note("a", 3)
    theirs.reason = "no environment"
    lines = list(page(["a", "b"], {"ours x": ours, "peer x": theirs}, {}, {"peer x": "ours x"}))
    ratios = next(line for line in lines if line.startswith("| x / peer x"))
    assert ratios.split("|")[2:4] == [" 0.50".rjust(19) + " ", " -".rjust(19) + " "]
    assert "peer x: no b: no environment" in lines


def test_padded_batches_are_sorted_and_each_row_gets_what_it_wanted() -> None:
    seen: list[tuple[list[int], int]] = []

    def run(places: list[int], new_tokens: int) -> list[list[int]]:
        seen.append((places, new_tokens))
        return [[place] * new_tokens for place in places]

    assert padded_batches(ROWS, 2, run) == [[0, 0], [1, 1, 1, 1], [2]]
    assert seen == [([1, 2], 4), ([0], 2)]


def test_a_side_without_its_environment_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "huggingface", {3: [ROWS]}, [], 1, tmp_path, 10)
    found = Figures()
    bench.turn(Side("peers.openvino_side", "int8", "openvino"), found, 0)
    assert found.reason == f"no environment {tmp_path}/openvino (see make_environments.sh)"
    assert not found.rounds


def test_every_peer_is_compared_with_a_side_of_ours() -> None:
    rivals = {side.rival for side in SIDES.values() if side.rival is not None}
    assert rivals <= {name for name, side in SIDES.items() if side.rival is None}
    assert cases_of([64, 256], [])[1:4] == ["64 rows, fresh s", "64 rows, warm s", "256 rows, warm s"]


@pytest.mark.slow
@pytest.mark.on_demand
def test_ours_runs_through_every_case(tmp_path: Path) -> None:
    from bench.peers.peers import TINY, write_random

    (tmp_path / "huggingface").mkdir()
    write_random(tmp_path / "huggingface", TINY)
    bench = Bench(tmp_path / "huggingface", {3: [ROWS, ROWS]}, [400], 1, tmp_path, 60)
    found = Figures()
    bench.turn(SIDES["ours int8"], found, 0)
    assert found.reason is None
    assert set(found.rounds) == set(cases_of([3], [400]))
    assert [len(answer) for answer in found.answers] == [2, 4, 1]
