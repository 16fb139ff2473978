"""Words on the command line that stand for keys: the folders of `mindbatch diff runs/a runs/b`."""

from mindbatch.config.faults import FaultLog
from mindbatch.config.path_faults import LONGEST_SHOWN
from mindbatch.config.schema import TaskConfig
from mindbatch.config.settings import Assignment, Setting, shown


def read_words(
    arguments: list[str], schema: type[TaskConfig], log: FaultLog
) -> tuple[list[Setting], list[str]]:
    """The settings that the words among `arguments` stand for, and the other arguments.

    A word has no `=`, or is a path that has one: no key has a slash. It is taken to the letter.
    """
    if not schema.positional:
        return [], arguments
    words = [argument for argument in arguments if _is_word(argument)]
    rest = [argument for argument in arguments if not _is_word(argument)]
    names = schema.positional
    for extra in words[len(names) :]:
        log.add(f"{shown(extra)}: one too many; there are only {', '.join(names)}")
    settings: list[Setting] = []
    for name, word in zip(names, words, strict=False):
        if any(argument.partition("=")[0].strip() == name for argument in rest):
            log.add(f"{name}: given twice, as {shown(word, LONGEST_SHOWN)} and as {name}=", name)
        settings.append(Assignment(name, word.replace("${", "\\${"), ""))
    return settings, rest


def _is_word(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return not equals or "/" in key
