"""The commands that messages give: each works in the environment at hand and brings what is missing alone."""

import json
import shlex
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
FROM_A_WHEEL = {"url": "file:///tmp/mindbatch.whl", "archive_info": {}}
EXTRAS = {
    **dict.fromkeys(installation.SERVER_PACKAGES, "server"),
    **{name: name for name in ("mindspore", "mindformers", "transformers", "ray")},
    **{"mpi4py": "mpi", "modelscope_hub": "modelscope", "lm_eval": "lm-eval"},
    **dict.fromkeys(("fsspec", "s3fs", "gcsfs"), "remote"),
}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_brought_by_its_extra(
    package: str, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert installation.install_command(package) == f"{pip} 'mindbatch[{EXTRAS[package]}]'"
    requirements = [*map(Requirement, requires("mindbatch") or ())]
    names = {
        each.name.replace("-", "_")
        for each in requirements
        if each.marker and each.marker.evaluate({"extra": EXTRAS[package]})
    }
    assert package in names


def test_packages_of_one_extra_are_one_word(pip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert installation.install_command("mindspore", *installation.SERVER_PACKAGES) == (
        f"{pip} 'mindbatch[mindspore,server]'"
    )
    assert installation.missing("ray") == f"Ray is not installed here; {pip} 'mindbatch[ray]'"


@pytest.mark.parametrize("name", ["", "-2.10"])
def test_what_the_scripts_of_a_checkout_made_keeps_to_its_pins(
    name: str, tmp_path: Path, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / f".venv{name}"
    environment.mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    pins = tmp_path / f"constraints{name}.txt"
    pins.touch()
    assert "-c" not in shlex.split(installation.install_command("ray"))  # made by hand
    (environment / "installed-for-core").touch()
    assert installation.install_command("ray") == f"{pip} 'mindbatch[ray]' -c {pins}"


@pytest.mark.parametrize(
    ("origin", "options"),
    [
        (IN_PLACE, f"--no-deps -e {CHECKOUT}"),
        (FROM_A_FOLDER, f"--no-deps --force-reinstall {CHECKOUT}"),
        *(
            (other, "--no-deps --force-reinstall path/to/checkout")
            for other in (FROM_A_WHEEL, None, "no JSON", [], folder_of(Path("/gone")))
        ),
    ],
)
def test_the_kernels_are_built_again_as_they_were_installed(
    origin: object, options: str, pip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(monkeypatch, origin)
    line = f"once there is a C++ compiler (apt install g++), {pip} {options} builds them"
    assert installation.rebuild_hint() == line
    (tmp_path / "g++").touch(mode=0o755)
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
