"""The model of scaling on paper, and its table in docs/performance.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.processes.scaling import GIB, Device, Replica, described, table

NPU = Device(memory=60 * GIB, bandwidth=1e12, arithmetic=150e12, latency=20e-6, link=100e9, host=3e-3)


def test_the_page_shows_what_the_command_prints() -> None:
    page = Path(__file__).parents[3] / "docs" / "performance.md"
    assert "\n".join(table(described(None), NPU, 64, 64, 1024)) in page.read_text("utf-8")


def test_one_device_waits_for_nobody() -> None:
    alone, two = (Replica(described(None), size, NPU) for size in (1, 2))
    assert alone.step(8, 100).collectives == 0
    assert two.step(8, 100).collectives > 161 * NPU.latency


def test_weights_are_read_at_small_batches_and_computed_with_at_large_ones() -> None:
    replica = Replica(described(None), 8, NPU)
    assert replica.step(1, 100).weights == replica.weight_bytes / NPU.bandwidth == replica.step(2, 9).weights
    assert replica.step(4000, 100).weights == pytest.approx(10 * replica.step(400, 100).weights)


def test_what_does_not_hold_the_weights_holds_nothing() -> None:
    small = replace(NPU, memory=16 * GIB)
    assert Replica(described(None), 8, small).fitting(1) == 0
    assert Replica(described(None), 16, small).fitting(1) > 0
