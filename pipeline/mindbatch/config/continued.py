"""The run that a task continues: its folder, and the configuration that was saved there."""

from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.path_faults import LONGEST_SHOWN
from mindbatch.config.paths import SAVED_CONFIG, near_sibling, resolve_path
from mindbatch.config.settings import Assignment, Setting, SettingReader

FOLDER = "output.dir"
NOT_CONTINUED = {"output.on_mismatch"}
"""Keys not taken from the saved configuration: what a first command says about a folder that already exists
is not meant for the run made there since."""


def read_saved(settings_above: list[Setting], reader: SettingReader, log: FaultLog) -> list[Setting]:
    """The settings saved in the folder that `settings_above` name, wherever that was moved to.

    Raises ConfigError when there are none: without them everything else would look like a fault, too.
    """
    num_faults = len(log.lines)
    file = _saved_file(settings_above, log)
    settings = reader.read_file(file) if file else []
    if len(log.lines) > num_faults:
        log.raise_if_any()
    return [
        setting
        for setting in settings
        if not (isinstance(setting, Assignment) and setting.key in NOT_CONTINUED)
    ]


def _saved_file(settings: list[Setting], log: FaultLog) -> Path | None:
    folders = [item.value for item in settings if isinstance(item, Assignment) and item.key == FOLDER]
    if not folders:
        log.add(f"{FOLDER}: must be given: the folder of the run", FOLDER)
        return None
    written = folders[-1]
    try:
        folder = resolve_path(resolved_text(written, "the folder of a run"))
        if (folder / SAVED_CONFIG).is_file():
            return folder / SAVED_CONFIG
        reason = _why_no_run(folder)
    except OSError as error:
        reason = f"cannot be used ({error.strerror})"
    except ValueError as error:
        reason = str(error)
    log.add(f"{FOLDER}={shown(written, LONGEST_SHOWN)}: {reason}", FOLDER)
    return None


def _why_no_run(folder: Path) -> str:
    if folder.is_dir():
        return f"holds no run (there is no {SAVED_CONFIG})"
    return (
        "is a file; give the folder of a run" if folder.exists() else f"no such folder{near_sibling(folder)}"
    )


def resolved_text(written: object, meaning: str) -> str:
    """The text that `written` stands for, with variables of the environment. Raises ValueError for none."""
    try:
        text = OmegaConf.create({"text": written}).text
    except OmegaConfBaseException as error:
        raise ValueError("has no value") from error
    if not isinstance(text, str) or not text:
        raise ValueError(f"must be {meaning}")
    return text
