"""Small tokenizers of the usual shapes, built in memory, and model folders that hold them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from mindbatch.prompts.chat import ChatLimits
from mindbatch.prompts.tokenizer import Tokenizer

CORPUS = [
    "hello world, user and system",
    "你好，世界。今天天气很好。",
    "<|im_start|> and <|im_end|> as text",
    "12+30=42",
]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(special: list[Any] | None = None) -> Backend:
    """Byte-level BPE, as GPT-2's, Llama 3's and Qwen's."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=special or CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentencepiece_like(*, metaspace: bool = False) -> Backend:
    """Llama 2's: byte fallback, a word's space in front as ▁, BOS added; newer conversions use Metaspace."""
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz<>|/[]_.,!", "\n"]
    pairs = [("▁", "h"), ("h", "i"), ("▁h", "i"), ("▁", "u"), ("s", "e"), ("▁", "t")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokens += [a + b for a, b in pairs if a + b not in tokens]
    backend = Backend(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=pairs,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def unigram() -> Backend:
    """A Unigram vocabulary holds its control tokens as ordinary words."""
    words = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), *((c, -5.0) for c in "abcdehilmorstx<>/")]
    backend = Backend(models.Unigram(words, unk_id=0))
    backend.add_special_tokens(["<unk>", "</s>"])
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    backend.decoder = decoders.Metaspace()
    return backend


def write_folder(folder: Path, backend: Backend | None, config: Mapping[str, Any] | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def tokenizer_of(folder: Path, limits: ChatLimits | None = None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer.load(folder, limits, **options)
    assert tokenizer is not None
    return tokenizer


def write_gpt2_vocabulary(folder: Path) -> Path:
    """The files of a byte-level tokenizer that has no tokenizer.json."""
    model = json.loads(byte_level().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    return folder
