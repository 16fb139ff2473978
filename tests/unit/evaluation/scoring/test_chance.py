"""Intervals and p-values by hand and by known coverage; over which rows columns are scored."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.chance import holm, mcnemar, paired_interval, sums_of_clusters, wilson
from mindbatch.evaluation.metric import Answer, DoubleArray, Metric
from mindbatch.evaluation.scores import Difference, Estimate, MetricScores, compared, scores_of

EXACT, F1, PERPLEXITY = metric_of("exact_match"), metric_of("f1"), metric_of("perplexity")


def shares(values: list[float] | DoubleArray) -> DoubleArray:
    """Sums of rows whose score is the value."""
    return np.stack([np.asarray(values, np.float64), np.ones(len(values))], axis=1)


def estimate(metric: Metric, rows: DoubleArray, clusters: Sequence[int] | None = None) -> Estimate:
    """The score of rows; without clusters each is one."""
    estimates, _ = compared(metric, {"a": rows}, clusters or range(len(rows)), {"a": "a"})
    return estimates["a"]


def difference(metric: Metric, system: DoubleArray, base: DoubleArray) -> Difference:
    return compared(metric, {"a": base, "b": system}, range(len(base)), {"a": "a", "b": "a"})[1]["b"]


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    [(0, 0, 1.0), (5, 0, 2 / 2**5), (3, 4, 1.0), (6, 1, 2 * (1 + 7) / 2**7), (3000, 2800, 0.008969)],
)
def test_mcnemar_is_how_likely_a_split_is_so_uneven(gained: int, lost: int, p_value: float) -> None:
    assert mcnemar(gained, lost) == mcnemar(lost, gained) == pytest.approx(p_value, rel=1e-3)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_scipys_binomial_test(gained: int, lost: int) -> None:
    reference = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(reference, rel=1e-8, abs=1e-300)


def test_holm_multiplies_the_smallest_by_all_and_never_decreases() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "none": None})
    assert adjusted == {
        "a": pytest.approx(0.03),
        "b": pytest.approx(0.06),
        "c": pytest.approx(0.06),
        "none": None,
    }
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@pytest.mark.slow
def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        rows = shares((draw.random(120) < 0.3).astype(float))
        found = estimate(EXACT, rows).interval
        assert found is not None
        covered += found.low <= 0.3 <= found.high
    assert 52 <= covered <= 60


@pytest.mark.parametrize(
    ("right", "rows", "low", "high"),
    [(0, 18, 0.0, 0.1759), (18, 18, 0.8241, 1.0), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)],
)
def test_wilson_is_what_newcombe_published(right: int, rows: int, low: float, high: float) -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I; and none, all."""
    assert wilson(right / rows, rows) == pytest.approx((low, high), abs=1e-4)


def test_an_interval_of_few_right_rows_covers_the_truth_as_often_as_it_says() -> None:
    """All outcomes of 18 rows, weighted by their probability; the bootstrap's covers 0.05 in 60 of 100."""
    for truth in (0.01, 0.05, 0.2, 0.5):
        chances = [math.comb(18, k) * truth**k * (1 - truth) ** (18 - k) for k in range(19)]
        intervals = [estimate(EXACT, shares([1] * k + [0] * (18 - k))).interval for k in range(19)]
        covered = [found is not None and found.low <= truth <= found.high for found in intervals]
        assert sum(chance for chance, is_in in zip(chances, covered, strict=True) if is_in) > 0.89


@pytest.mark.parametrize(
    ("both", "first", "second", "none", "low", "high"),
    [(36, 12, 2, 0, 0.0569, 0.3404), (14, 3, 0, 0, -0.0405, 0.4103), (0, 18, 0, 0, 0.7513, 1.0)],
)
def test_differences_of_shares_have_newcombes_interval(
    both: int, first: int, second: int, none: int, low: float, high: float
) -> None:
    """The first is in his table, the others by his formula, apart from this code. All gained has a width."""
    system = np.array([1.0] * (both + first) + [0.0] * (second + none))
    base = np.array([1.0] * both + [0.0] * first + [1.0] * second + [0.0] * none)
    assert paired_interval(system, base) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("values", [[3.0] * 20, [0.0] * 17 + [1.0, 2.0, 4.0]])
def test_rows_that_are_alike_have_no_interval(values: list[float]) -> None:
    found = estimate(F1, shares(values))
    assert (found.stderr, found.interval) == (None, None)


def test_a_constant_difference_of_few_rows_is_not_beyond_chance() -> None:
    """However alike they are: of five signs that could be either, all are equal once in 16 times."""
    five = difference(F1, shares([0.5] * 5), shares([0.3] * 5))
    assert five.p_value == pytest.approx(2 / 2**5, abs=0.015)
    assert (five.interval, five.is_beyond_chance) == (None, False)
    assert difference(F1, shares([0.5] * 50), shares([0.3] * 50)).is_beyond_chance


def test_clusters_of_equal_rows_count_as_rows() -> None:
    """Ten questions that are all wrong, asked four times: the interval is that of ten."""
    rows, clusters = shares([0.0] * 40), np.repeat(np.arange(10), 4).tolist()
    assert estimate(EXACT, rows, clusters).interval == wilson(0.0, 10)
    assert estimate(EXACT, rows).interval == wilson(0.0, 40)


def test_clusters_widen_the_interval_as_copies_of_rows_should() -> None:
    draw = np.random.default_rng(2)
    values = (draw.random(60) < 0.5).astype(float)
    once = estimate(EXACT, shares(values))
    copied, clusters = shares(np.repeat(values, 5)), np.repeat(np.arange(60), 5).tolist()
    assert estimate(EXACT, copied, clusters).stderr == pytest.approx(once.stderr)
    assert estimate(EXACT, copied).stderr == pytest.approx((once.stderr or 0) / math.sqrt(5), rel=0.1)


def test_rows_of_a_cluster_are_one_and_have_no_exact_test() -> None:
    rows = shares([1, 0, 1, 1, 0, 0, 1])
    assert sums_of_clusters(rows[:3], ["a", "b", "a"]).tolist() == [[2, 2], [0, 1]]
    systems = {"a": rows, "b": shares(1 - rows[:, 0])}
    _, differences = compared(EXACT, systems, [0, 0, 1, 2, 3, 4, 5], {"a": "a", "b": "a"})
    assert differences["b"].test == "randomization"


def test_too_few_rows_have_no_interval() -> None:
    found = estimate(EXACT, shares([1, 1, 0, 1]))
    assert (found.value, found.num_rows, found.stderr, found.interval) == (0.75, 4, None, None)
    assert math.isnan(estimate(EXACT, np.empty((0, 2))).value)


@pytest.mark.parametrize("metric", [EXACT, F1])
@pytest.mark.parametrize("num_rows", [1, 3, 4])
def test_too_few_rows_have_no_p_value(metric: Metric, num_rows: int) -> None:
    """All of three gained is no noise either."""
    found = difference(metric, shares([1.0] * num_rows), shares([0.0] * num_rows))
    assert (found.p_value, found.interval) == (None, None)


def test_a_difference_beyond_chance_and_one_within() -> None:
    draw = np.random.default_rng(3)
    base = (draw.random(200) < 0.5).astype(float)
    better, same = base.copy(), base.copy()
    better[np.flatnonzero(base == 0)[:40]] = 1
    same[:10] = 1 - same[:10]
    found = difference(EXACT, shares(better), shares(base))
    assert (found.test, found.gained, found.lost, found.is_beyond_chance) == ("mcnemar", 40, 0, True)
    assert found.value == pytest.approx(0.2)
    assert found.interval is not None
    assert found.interval.low < 0.2 < found.interval.high
    assert not difference(EXACT, shares(same), shares(base)).is_beyond_chance


def test_scores_that_are_no_shares_are_compared_by_random_exchanges() -> None:
    draw = np.random.default_rng(4)
    base = draw.random(150)
    found = difference(F1, shares(base + 0.02), shares(base))
    assert (found.test, found.gained) == ("randomization", None)
    assert found.p_value is not None
    assert found.p_value < 0.01, "each row is better by as much, however much rows differ"
    noise = draw.normal(0, 0.1, 150)
    within = difference(F1, shares(base + noise - noise.mean() + 0.001), shares(base))
    assert within.p_value is not None
    assert within.p_value > 0.5


@pytest.mark.slow
def test_random_exchanges_are_seldom_wrong_without_a_difference() -> None:
    draw = np.random.default_rng(5)
    wrong = 0
    for _ in range(30):
        system, base = (np.stack([draw.exponential(20, 80), np.full(80, 10.0)], axis=1) for _ in range(2))
        wrong += difference(PERPLEXITY, system, base).is_beyond_chance
    assert wrong <= 5


RIGHT, WRONG = (Answer("a", ("a",)),), (Answer("b", ("a",)),)


def scores(columns: dict[str, dict[int, tuple[Answer, ...]]], baseline: str) -> MetricScores:
    return scores_of(metric_of("exact_match"), columns, [None] * 8, dict.fromkeys(columns, baseline))


def test_a_column_of_which_nothing_ran_leaves_the_others_their_scores() -> None:
    good = dict.fromkeys(range(8), RIGHT)
    found = scores({"a": good, "dead": {}, "c": good | {0: WRONG}}, "a")
    assert found.rows == tuple(range(8))
    assert (found.estimates["a"].value, found.estimates["c"].value) == (1.0, 0.875)
    assert math.isnan(found.estimates["dead"].value)
    assert (found.unscored, found.per_row["dead"], found.per_row["c"][0]) == (["dead"], {}, 0.0)
    assert [*found.differences] == ["c"]


def test_without_a_baseline_there_are_no_differences() -> None:
    found = scores({"dead": {}, "c": dict.fromkeys(range(8), RIGHT)}, "dead")
    assert (found.estimates["c"].value, found.differences) == (1.0, {})
    assert scores({"dead": {}, "gone": {}}, "dead").unscored == ["dead", "gone"]


def test_samples_of_a_question_count_as_one_question() -> None:
    """Four samples of each of ten questions: the error is that of ten, and there is no exact test."""
    base = {number: RIGHT * 4 if number < 5 else WRONG * 4 for number in range(10)}
    once = {number: answers[:1] for number, answers in base.items()}
    half = dict.fromkeys(range(10), RIGHT * 2 + WRONG * 2)
    found = scores_of(metric_of("exact_match"), {"a": base, "b": half}, [None] * 10, {"a": "a", "b": "a"})
    alone = scores_of(metric_of("exact_match"), {"a": once}, [None] * 10, {"a": "a", "b": "a"})
    assert found.estimates["a"].stderr == alone.estimates["a"].stderr
    assert (found.estimates["b"].value, found.estimates["b"].stderr) == (0.5, 0.0)
    assert (found.differences["b"].test, found.differences["b"].gained) == ("randomization", None)
    assert found.per_row["b"][3] == 0.5
