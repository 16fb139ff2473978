"""Prepares a process for MindSpore and MindFormers: no messages, no stray folders, no network."""

import atexit
import functools
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path

from mindbatch.io.screen_text import shown_traceback
from mindbatch.io.storage import TemporaryFolder

_FOREIGN = ("mindspore", "mindformers", "transformers")

_QUIET = {
    "GLOG_v": "3",  # MindSpore: errors only
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # "None of PyTorch, TensorFlow ... have been found"
}

_ALWAYS = {
    "TOKENIZERS_PARALLELISM": "false",  # its threads warn when the chat-template process is started
    # MindSpore's protobuf modules are older than the installed protobuf: its C implementation refuses them.
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
    "OMP_WAIT_POLICY": "PASSIVE",  # OpenMP threads that spin slow MindSpore's own kernels four times
}

_OF_MINDFORMERS = {
    "RUN_MODE": "predict",
    "ENFORCE_EAGER": "false",  # its models are parts of graphs
    "VLLM_BATCH_INVARIANT": "false",  # would ask for a package of operators that only NPUs have
}

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MS_DEV_RUNTIME_CONF",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
)


def configure_process() -> None:
    """Changes the process in ways that are only right for the command `mindbatch`, before other imports.

    OpenBLAS, which is not used, starts threads when NumPy is imported; a signal could be delivered to one of
    them while the main thread defers signals (`interrupts.py`).
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "JPY_PARENT_PID" in os.environ:  # started in a notebook: its terminal only adds to what it shows
        os.environ["TERM"] = "dumb"
    if sys.flags.isolated:
        sys.path[:0] = _named_folders()
    _speak_utf8()


def _named_folders() -> list[str]:
    """Lists the folders of PYTHONPATH, where CANN's packages are, without the current folder: CANN's scripts
    leave an empty entry, which means that one."""
    folders = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    here = os.path.realpath(os.curdir)
    return [folder for folder in folders if os.path.realpath(folder) != here]


def _speak_utf8() -> None:
    """Restarts Python in its UTF-8 mode if the locale is ASCII and the mode is switched off.

    Without it, prompts and file names beyond ASCII can be neither read nor printed.
    """
    if sys.getfilesystemencoding() == "ascii" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def end_as_scheduler() -> None:
    """Ends this process if it is msrun's scheduler, a copy of the script beside the workers: it is no rank,
    and the ranks do not need it."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        sys.exit()


_USUAL_UMASK = 0o022
_PRIVATE_UMASK = 0o077


def keep_files_private() -> None:
    """Makes new files and folders private to this user (0600, 0700), if the umask is the usual 022."""
    umask = os.umask(_PRIVATE_UMASK)
    if umask != _USUAL_UMASK:
        os.umask(umask)


def prepare_environment(verbose: bool = False, num_threads: int | None = None) -> None:
    """Prepares this process for MindSpore, MindFormers and transformers, before they are imported.

    Variables that the user has set are kept, except HF_HUB_OFFLINE. Logs and the dumps of failed compilations
    go to `cache_folder()` instead of the current folder.

    verbose: shows the libraries' warnings and tracebacks of failed rows; else only their errors are shown.
    num_threads: overrides OMP_NUM_THREADS.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever the user has set: nothing in a model folder is fetched
    for name, value in (_ALWAYS if verbose else _ALWAYS | _QUIET).items():
        os.environ.setdefault(name, value)
    if num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    if shutil.which("cat") is None:  # MindSpore asks the processor with cat, grep and sed, through a shell
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), os.defpath)))
    _redirect_folders()
    if verbose:
        _show_tracebacks()
    else:
        _drop_messages()


def prepare_for_mindformers() -> None:
    """Sets the variables that MindFormers' models read, over any values of the user."""
    os.environ.update(_OF_MINDFORMERS)


@functools.cache
def cache_folder() -> Path:
    """Returns the user's folder for logs and compiler dumps; a temporary one if home is not writable."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base).absolute() / "mindbatch"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: no home folder at all
        pass
    temporary = TemporaryFolder()
    atexit.register(temporary.remove)
    return temporary.path


def thread_settings() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in THREAD_VARIABLES}


def _redirect_folders() -> None:
    logs = str(cache_folder() / "logs")
    os.environ.setdefault("LOG_MF_PATH", logs)  # MindFormers: ./output/log
    os.environ.setdefault("MS_OM_PATH", logs)  # MindSpore: ./rank_0/om/analyze_fail.ir


class _Tracebacks(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        shown_traceback([self.format(record)])


def _show_tracebacks() -> None:
    logger = logging.getLogger("mindbatch")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _Tracebacks) for handler in logger.handlers):
        logger.addHandler(_Tracebacks())


def _drop_messages() -> None:
    """Silences MindFormers' logger, which writes to standard output, and Python's warnings."""
    # MindFormers names its logger after its folder, as read from the same variable.
    logger = logging.getLogger(f"mindformers{os.path.expanduser(os.environ['LOG_MF_PATH'])}")
    if _is_error not in logger.filters:
        logger.addFilter(_is_error)
    for package in _FOREIGN:
        warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
