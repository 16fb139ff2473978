"""Saves tokenizers as the transformers of this Python does, with the ids that they give.

    PYTHON tests/makers save_tokenizers SOURCE TARGET TEXTS

SOURCE has a folder for each tokenizer, TEXTS is a JSON list. TARGET/NAME is what `save_pretrained` writes,
and TARGET/ids.json has the ids of each text by NAME.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def main(source: Path, target: Path, texts: Path) -> None:
    """Saves every tokenizer of a folder."""
    ids = {}
    for folder in sorted(source.iterdir()):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.save_pretrained(target / folder.name)
        again = AutoTokenizer.from_pretrained(target / folder.name)
        ids[folder.name] = [again(text)["input_ids"] for text in json.loads(texts.read_text())]
    (target / "ids.json").write_text(json.dumps(ids))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
