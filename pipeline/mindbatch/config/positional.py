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
    if not schema.positional and not schema.positional_rest:
        return [], arguments
    words = [argument for argument in arguments if _is_word(argument)]
    rest = [argument for argument in arguments if not _is_word(argument)]
    names = schema.positional
    settings: list[Setting] = [
        Assignment(name, _literal(word), "") for name, word in zip(names, words, strict=False)
    ]
    further = words[len(names) :]
    if further and schema.positional_rest:
        settings.append(Assignment(schema.positional_rest, [_literal(word) for word in further], ""))
    elif further:
        for extra in further:
            log.add(f"{shown(extra)}: one too many; only {', '.join(names)} may be given without key=")
    _refuse_repeated(settings, words, rest, log)
    return settings, rest


def _refuse_repeated(settings: list[Setting], words: list[str], rest: list[str], log: FaultLog) -> None:
    """A key that is given as a word is not to be given once more."""
    keys = {argument.partition("=")[0].strip() for argument in rest}
    for setting, word in zip(settings, words, strict=False):
        if isinstance(setting, Assignment) and setting.key in keys:
            name = setting.key
            log.add(f"{name}: given twice, as {shown(word, LONGEST_SHOWN)} and as {name}=", name)


def _literal(word: str) -> str:
    return word.replace("${", "\\${")


def _is_word(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return not equals or "/" in key
