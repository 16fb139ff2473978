"""The key that names a predict YAML of MindFormers, taken out of the configuration that it is laid under."""

from collections.abc import Iterable

from mindbatch.config.settings import Assignment, Setting

PREDICT_YAML = "model.mindformers_yaml"


def take_out(options: Iterable[list[Assignment]], layers: Iterable[list[Setting]]) -> object:
    """Removes the key from what options set and from the layers, which go before; returns its last value.

    A configuration that is kept holds what came of the YAML, and does not need it again.
    """
    written: object = None
    for assignments in options:
        written = next((setting.value for setting in assignments if setting.key == PREDICT_YAML), written)
        assignments[:] = [setting for setting in assignments if setting.key != PREDICT_YAML]
    for layer in layers:
        for setting in [*layer]:
            if isinstance(setting, Assignment) and setting.key == PREDICT_YAML:
                written = setting.value
                layer.remove(setting)
    return written
