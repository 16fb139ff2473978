"""The whole table: what each key of a predict YAML means here."""

from mindbatch.config.predict_yaml.entries import Entry
from mindbatch.config.predict_yaml.model_table import MODEL, PROCESSOR
from mindbatch.config.predict_yaml.pet_table import PET
from mindbatch.config.predict_yaml.run_table import DEVICE, EXPERTS, FILES, RANKS
from mindbatch.io.fault_lines import did_you_mean

TABLE: dict[str, Entry] = FILES | RANKS | EXPERTS | DEVICE | MODEL | PET | PROCESSOR
"""By dotted key. Where several set one key of ours, the first that is given does."""

SECTIONS = frozenset(name.rsplit(".", depth)[0] for name in TABLE for depth in range(1, name.count(".") + 1))
"""Keys that hold keys."""


def near(name: str, known: list[str]) -> str:
    """`; did you mean KEY?` with the key that was probably meant by the unknown `name`, or nothing."""
    section, _, leaf = name.rpartition(".")
    in_section = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    everywhere = {key.rpartition(".")[2]: key for key in reversed(known)}
    if leaf in everywhere:
        return f"; did you mean {everywhere[leaf]}?"
    return did_you_mean(leaf, in_section, notation=in_section.__getitem__) or did_you_mean(
        leaf, everywhere, cutoff=0.75, notation=everywhere.__getitem__
    )
