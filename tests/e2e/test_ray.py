"""`mindbatch.ray.Generate` in a Ray Data pipeline over a local cluster of two nodes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
