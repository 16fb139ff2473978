"""The keys of `mindbatch plan` that are about MindSpore's own layout of a MindFormers model."""

from dataclasses import dataclass

from mindbatch.config.schema_fields import option


@dataclass
class LayoutConfig:
    """How MindSpore cuts a MindFormers model (model.provider=mindformers)."""

    dir: str | None = option(
        None, "folder for MindSpore's strategy files, one a pipeline stage; null: none are kept", is_path=True
    )
    replace: bool = option(False, "write over strategy files that say something else")
    vocab_emb_dp: bool = option(
        True, "keep embedding and head whole on every rank, as MindFormers does unless told otherwise"
    )
    timeout: int = option(600, "seconds for MindSpore's compiler", minimum=1)
