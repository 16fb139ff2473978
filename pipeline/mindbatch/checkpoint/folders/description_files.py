"""Files beside config.json that say how a folder's matrices are stored."""

import fnmatch
from pathlib import Path

from mindbatch.checkpoint.folders.folder_files import file_names

MODELOPT_NAME = "hf_quant_config.json"
GOLDEN_STICK_NAME = "quantization_description.json"
_PATTERNS = (
    "quant_model_description.json",
    "quant_model_description_*.json",
    GOLDEN_STICK_NAME,
    MODELOPT_NAME,
)
"""msModelSlim's, by its releases; MindSpore Golden Stick's; ModelOpt's."""


def description_in(home: Path) -> str | None:
    """The name of the folder's file of a pattern that one file alone is of; None where there is none."""
    names = file_names(home)
    for pattern in _PATTERNS:
        if len(matching := fnmatch.filter(names, pattern)) == 1:
            return matching[0]
    return None
