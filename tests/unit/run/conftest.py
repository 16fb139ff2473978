"""A small dataset, which every test of a job has for itself."""

from pathlib import Path

import pytest

from stub_job import write_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", 30)
