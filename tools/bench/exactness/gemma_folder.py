"""Makes a Hugging Face folder of a GGUF file of Gemma 3, dequantised. Arguments: file, folder.

The tokenizer that transformers makes of the file splits words into letters. This one has the file's tokens,
and merges in the order of the scores of what they make, as SentencePiece does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Kinds of tokens in a GGUF file, as llama.cpp numbers them."""


def tokenizer_of(file: Path) -> Tokenizer:
    """Returns a tokenizer with the ids of llama.cpp's."""
    fields = gguf.GGUFReader(file).fields
    tokens, scores, kinds = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    ids = {token: number for number, token in enumerate(tokens)}
    merges = [
        (-scores[number], ids[token[:cut]], ids[token[cut:]])
        for token, number in ids.items()
        if kinds[number] == NORMAL
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    pairs = [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]
    model = models.BPE(vocab=ids, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    named = {kind: [tokens[i] for i in ids.values() if kinds[i] == kind] for kind in (CONTROL, USER_DEFINED)}
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in named[CONTROL]]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in named[USER_DEFINED]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return tokenizer


def main() -> None:
    """Writes the folder, tokenizer.json last."""
    file, folder = map(Path, sys.argv[1:])
    of_file = {"gguf_file": file.name, "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **of_file)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    tokenizer_of(file).save(str(folder / "tokenizer.json"))
