"""Keys of config.json that the user names are passed over by every task that reads the file."""

import json
import shutil
from pathlib import Path

import pytest

from mindbatch import cli
from mindbatch.config.paths import data_root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = Path(shutil.copytree(data_root() / "examples/tiny_gpt2", tmp_path / "model"))
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(config | {"mystery": 1}))
    return home


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (
            ["plan", "model.checkpoint_name_or_path={}", "parallel.model_parallel=2"],
            "model.ignore_config_keys",
        ),
        (["reshard", "source={}", "target.dir={}2", "target.model_parallel=2"], "ignore_config_keys"),
    ],
)
def test_tasks_that_read_it(
    given: list[str], setting: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [word.format(folder) for word in given]
    assert cli.main(command) != 0
    assert f"goes into {setting}=[mystery]" in capsys.readouterr().err
    assert cli.main([*command, f"{setting}=[mystery]"]) == 0
    assert cli.main([*command, f"{setting}=7"]) == 2
    assert f"{setting}=7: must be a list of keys of config.json" in capsys.readouterr().err
