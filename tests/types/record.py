"""Records what belongs to a model type that was added: what transformers computes, and what follows from it.

    PYTHON tests/types/record.py TYPE ...

PYTHON has torch and transformers. Read are `models/TYPE.py`, TYPE.json beside this file and the type's files
in tests/published; written are

- TYPE.npz beside this file, the tokens and logits of its cases, which all tests of every type find;
- config_keys.json of the package: the defaults of the keys that `describe` reads;
- the defaults of its configuration class, for the tests;
- the logits of its tiny model for tools/ascend_check;
- what transformers computes for its published configurations made small;
- the number of types in README.md, and the table of published configurations in docs/models.md.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path

import numpy as np
from transformers import CONFIG_MAPPING

ROOT = Path(__file__).parents[2]
FOLDERS = ("pipeline", "tools", "tests/makers", "tests/samples", "tests/numerics")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
TYPES, sys.argv[1:] = sys.argv[1:], []  # the makers take names of cases from there

import make_config_fixtures as classes  # noqa: E402
import make_published_fixtures  # noqa: E402
from make_model_fixtures import GROUPED, cases_of, write_references  # noqa: E402
from mindbatch.config_json.reader import ConfigReader, config_keys  # noqa: E402
from mindbatch.kernels.choice import choose_kernels  # noqa: E402
from mindbatch.model_spec.registry import MODEL_TYPES, declaration, describe  # noqa: E402
from published_configs import RECORDED as PUBLISHED  # noqa: E402
from published_configs import published  # noqa: E402


def record_defaults(model_type: str) -> None:
    """Writes the defaults of the configuration class, all of them and those of keys that are read."""
    defaults = classes.defaults_of(CONFIG_MAPPING[model_type]) | classes.LATER.get(model_type, {})
    whole = json.loads(classes.TARGET.read_text())
    whole["defaults"][model_type] = defaults
    classes.TARGET.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    reader = ConfigReader(defaults)
    declaration(model_type).describe(reader)
    shipped = json.loads(classes.SHIPPED.read_text())
    shipped["defaults"][model_type] = {
        key: value
        for key, value in defaults.items()
        if key in reader.read_keys and value not in (None, False)
    }
    tables = (f' "{name}": {classes.compact(table)}' for name, table in sorted(shipped.items()))
    classes.SHIPPED.write_text("{\n" + ",\n".join(tables) + "\n}\n")
    config_keys.cache_clear()


def record_cases(model_type: str) -> None:
    """Writes what transformers computes for the tiny models of TYPE.json."""
    source = Path(__file__).with_name(f"{model_type}.json")
    content = json.loads(source.read_text())
    base = GROUPED | {"model_type": model_type, "pad_token_id": None}
    cases = {name: base | settings for name, settings in content["cases"].items()}
    cases = cases_of(cases, content.get("dtypes", {}), content.get("shards", {}))
    write_references(source.with_suffix(".npz"), cases)


def record_tiny_models(model_types: list[str]) -> None:
    """Writes the logits that this machine's CPU computes for the types' models of tools/ascend_check."""
    from ascend_check.models import RECORDED, recorded  # made of the defaults that are recorded before
    from ascend_check.runs import logits

    kernels = choose_kernels("auto", "CPU")
    computed = {name: logits(name, kernels) for name in model_types if not declaration(name).beyond_ascend}
    np.savez_compressed(RECORDED, **{**recorded(), **computed})


def record_published(model_types: list[str]) -> None:
    own = [name for name, model in published().items() if model.config.get("model_type") in model_types]
    make_published_fixtures.main(own)


def write_lists() -> None:
    """Writes the number of types into README.md, and the published configurations into docs/models.md."""
    _replace("README.md", r"(?<=Hugging Face folders of )\d+(?= types)", str(len(MODEL_TYPES)))
    by_type: dict[str, list[str]] = {}
    for name in sorted(json.loads(lzma.decompress(PUBLISHED.read_bytes())), key=str.lower):
        by_type.setdefault(describe(published()[name].config).model_type, []).append(name)
    rows = "\n".join(f"| `{kind}` | {', '.join(names)} |" for kind, names in sorted(by_type.items()))
    _replace("docs/models.md", r"(?<=\| type \| published models \|\n\|---\|---\|\n).*?(?=\n\n)", rows)


def _replace(page: str, pattern: str, text: str) -> None:
    path = ROOT / page
    content = re.sub(pattern, lambda _: text, path.read_text("utf-8"), count=1, flags=re.DOTALL)
    path.write_text(content, "utf-8")


if __name__ == "__main__":
    for model_type in TYPES:
        record_defaults(model_type)
        record_cases(model_type)
    record_tiny_models(TYPES)
    record_published(TYPES)
    write_lists()
