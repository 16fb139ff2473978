"""Imported first by tools that people run from a checkout: its package is found, installed or not."""

import sys
from pathlib import Path

_SOURCES = Path(__file__).resolve().parents[1] / "pipeline"

if str(_SOURCES) not in sys.path:
    sys.path.insert(0, str(_SOURCES))
