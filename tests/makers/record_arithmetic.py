"""Records digests of what every type computes, for test_every_processor.py.

In this project's own environment, on any processor with multiply-adds. Only a change of the
arithmetic itself is a reason to record again; it raises the number in run/manifest.py, too.
"""

import json
import tempfile
from pathlib import Path

from test_every_processor import KINDS, RECORDED, digest, is_comparable
from type_cases import TYPE_CASES

from mindbatch.kernels.native_library import find_library


def main() -> None:
    library = find_library()
    assert library is not None
    recorded: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        variant = next(each for each in library.variants if is_comparable(each, kind))
        for case in TYPE_CASES:
            with tempfile.TemporaryDirectory() as folder:
                recorded[kind][case] = digest(case, kind, variant, Path(folder))
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
