"""The commands that messages give: each works in the environment at hand and brings what is missing alone."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from mindbatch.io import installation
from mindbatch.io.errors import ConfigError
from mindbatch.kernels import choice, native_library

CHECKOUT = Path(__file__).parents[2]


class Metadata:
    """An installed distribution whose direct_url.json (PEP 610) holds `origin`."""

    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin if self.origin is None or isinstance(self.origin, str) else json.dumps(self.origin)


def folder_of(path: Path, **info: bool) -> dict[str, object]:
    return {"url": path.as_uri(), "dir_info": info}


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment is not activated; the command of its pip."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return f"{shlex.quote(sys.executable)} -m pip install"


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: Metadata(origin))


def not_installed(name: str) -> None:
    raise installation.PackageNotFoundError(name)


def test_the_pip_is_that_of_this_environment(
    pip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installation.pip_install() == pip
    (tmp_path / "pip").touch(mode=0o755)
    for folder, command in ((Path(sys.executable).parent, "pip install"), (tmp_path, pip)):
        monkeypatch.setenv("PATH", str(folder))
        assert installation.pip_install() == command
    monkeypatch.setattr(installation, "version", not_installed)
    assert installation.pip_install() == f"uv pip install --python {shlex.quote(sys.executable)}"


IN_PLACE, FROM_A_FOLDER = folder_of(CHECKOUT, editable=True), folder_of(CHECKOUT)
OTHERS = [
    {"url": "file:///tmp/mindbatch.whl", "archive_info": {}},
    None,
    "no JSON",
    [],
    folder_of(Path("/gone")),
]
BROUGHT = ("ray", "mpi4py", "modelscope_hub", "lm_eval", "mindspore", "mindformers")


@pytest.mark.parametrize("package", [*installation.SERVER_PACKAGES, *BROUGHT])
def test_a_missing_package_is_brought_without_installing_mindbatch_anew(
    package: str, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for origin in (IN_PLACE, FROM_A_FOLDER, *OTHERS):
        installed_from(monkeypatch, origin)
        before, _, after = installation.install_command(package).partition(f"{pip} ")
        requirements, pins = (shlex.split(words) for words in after.partition("-c ")[::2])
        assert not before
        assert pins == ([str(CHECKOUT / "constraints.txt")] if origin in (IN_PLACE, FROM_A_FOLDER) else [])
        names = [requirement.replace("-", "_") for requirement in requirements]
        assert any(name.startswith(package) for name in names)
        assert not any(name.startswith(("mindbatch", ".")) for name in names)
        assert any("mindspore" in name for name in names) == (package == "mindspore")


def test_the_pins_are_those_of_the_mindspore_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, IN_PLACE)
    monkeypatch.setattr(installation, "version", lambda name: "2.10.0")
    assert installation.install_command("ray").endswith(f"-c {CHECKOUT}/constraints-2.10.txt")


def test_without_metadata_the_name_is_asked_for(pip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for reader in ("distribution", "requires"):
        monkeypatch.setattr(installation, reader, not_installed)
    assert installation.missing("ray") == f"Ray is not installed here; {pip} ray"
    assert installation.kernels_are_missing(computes=True).endswith(
        f"{pip} --no-deps --force-reinstall path/to/checkout builds them"
    )


@pytest.mark.parametrize(
    ("origin", "options"),
    [
        (IN_PLACE, f"--no-deps -e {CHECKOUT}"),
        (FROM_A_FOLDER, f"--no-deps --force-reinstall {CHECKOUT}"),
        (OTHERS[0], "--no-deps --force-reinstall path/to/checkout"),
    ],
)
def test_the_kernels_are_built_again_as_they_were_installed(
    origin: object, options: str, pip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(monkeypatch, origin)
    line = f"once there is a C++ compiler (apt install g++), {pip} {options} builds them"
    assert installation.rebuild_hint() == line
    (tmp_path / "clang++").touch(mode=0o755)
    assert installation.rebuild_hint() == f"{pip} {options} builds them"


def test_numpy_in_place_of_the_kernels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_library", lambda: None)
    monkeypatch.setattr(native_library, "find_library", lambda: None)
    (note,) = choice.kernel_notes("auto", "CPU")
    assert note.startswith("the C++ kernels are not built: no C++ compiler worked")
    assert not [*choice.kernel_notes("reference", "CPU"), *choice.kernel_notes("auto", "Ascend")]


@pytest.mark.parametrize(("name", "dtype"), [("native", "float32"), ("auto", "bfloat16")])
def test_what_is_refused_for_want_of_kernels_is_computed_by_nobody(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_library", lambda: None)
    monkeypatch.setattr(native_library, "find_library", lambda: None)
    with pytest.raises(ConfigError, match="not built: no C.. compiler .* builds them$") as error:
        choice.choose_kernels(name, "CPU", dtype=dtype)
    assert "NumPy" not in str(error.value)


def test_kernels_that_cannot_be_loaded_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "_cpu.so").write_text("no library")
    with pytest.raises(
        ConfigError, match=r"^the C\+\+ kernels cannot be loaded \(.*_cpu.so.*kernels=reference does without$"
    ):
        native_library._open(tmp_path / "_cpu.so")
