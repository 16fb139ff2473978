"""The keys of `mindbatch plan` that are about what ranks hold of a model."""

from dataclasses import dataclass

from mindbatch.config.schema_fields import option


@dataclass
class LayoutConfig:
    """What ranks hold of a model; with model.provider=mindformers as MindSpore cuts it."""

    dir: str | None = option(
        None, "folder for MindSpore's strategy files, one a pipeline stage; null: none are kept", is_path=True
    )
    replace: bool = option(False, "write over strategy files that say something else")
    vocab_emb_dp: bool = option(
        True, "of MindFormers: keep embedding and head whole on every rank, as it does unless told otherwise"
    )
    qkv_concat: bool = option(
        False, "query, key and value are one parameter, gate and up another, as the model's qkv_concat says"
    )
    timeout: int = option(600, "seconds for MindSpore's compiler", minimum=1)
