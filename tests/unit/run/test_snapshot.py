"""Rates over the last seconds of a run."""

import pytest

from mindbatch.run.metrics import SAMPLES_PER_WINDOW, RateMeter, Rates, Snapshot, rates_between


def at(seconds: float, tokens: int = 0, **counts: int) -> Snapshot:
    return Snapshot(seconds=seconds, rows_total=100, generated_tokens=tokens, **counts)


def test_the_first_snapshot_has_no_rates() -> None:
    assert RateMeter().rates(at(5.0, 100)) == Rates()


def test_rates_cover_the_whole_of_a_young_run() -> None:
    meter = RateMeter(window=10.0)
    meter.rates(at(1.0, rows_done=3))
    found = meter.rates(at(5.0, 80, prompt_tokens=40, rows_done=10, rows_failed=1))
    assert found == Rates(prompt_tokens=10.0, generated_tokens=20.0, rows=2.0)


def test_rates_forget_what_is_older_than_the_window() -> None:
    meter = RateMeter(window=10.0)
    for second in range(101):
        tokens = second if second <= 50 else 50 + 100 * (second - 50)
        found = meter.rates(at(float(second), tokens))
    assert found.generated_tokens == pytest.approx(100.0)
    assert meter.rates(at(200.0, tokens)).generated_tokens == 0.0


def test_any_number_of_snapshots_leaves_few_samples() -> None:
    meter = RateMeter(window=10.0)
    for step in range(20_000):
        found = meter.rates(at(step / 500, step * 3))
    assert found.generated_tokens == pytest.approx(1500.0)
    assert len(meter._samples) <= SAMPLES_PER_WINDOW + 3


def test_no_time_is_no_rate() -> None:
    assert rates_between(at(1.0), at(1.0, 50)) == Rates()


def test_shares() -> None:
    snapshot = at(1.0, rows_done=4, rows_failed=2, prompt_tokens=200, cached_prompt_tokens=50)
    assert (snapshot.rows_ended, snapshot.prefix_hits) == (6, 0.25)
    assert at(0.0).prefix_hits == 0.0
