"""A folder with a module for every name that a program may import; each notes that it was executed."""

import sys
from pathlib import Path

LAID = "executed"
_OTHERS = (
    *("akg", "hydra", "jinja2", "llguidance", "markupsafe", "mindbatch", "mindformers", "mindspore", "numpy"),
    *("omegaconf", "orjson", "pyarrow", "regex", "safetensors", "sitecustomize", "tbe", "te"),
    *("tokenizers", "transformers", "usercustomize", "xxhash", "yaml"),
)


def lay_traps(folder: Path, *, besides: tuple[str, ...] = (), empty: bool = False) -> None:
    """Lays them; what is executed of them writes its name to the file `executed` beside them.

    besides: names that get none. empty: they do nothing, and lack what is expected of them.
    """
    trap = (
        ""
        if empty
        else (
            f"open({str(folder / LAID)!r}, 'a').write(__name__ + '\\n')\n"
            "raise SystemExit('executed from the current folder')\n"
        )
    )
    for name in {*sys.stdlib_module_names, *_OTHERS} - {*besides}:
        (folder / f"{name}.py").write_text(trap)
