"""The tokenizers of ChatGLM2, ChatGLM3 and the first GLM-4, whose folders have code for them: it is not run.

Source: the behaviour of tokenization_chatglm.py in the published folders.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.sentencepiece_file import merges_of, sentencepiece_backend
from mindbatch.prompts.token_bytes import LoadedTokenizer, byte_level_alphabet, kept
from mindbatch.prompts.tokenizer_folder import SETTINGS, checked_copy, read_json_file


def tiktoken_backend(data: bytes, path: Path, pattern: str) -> Backend:
    """The tokenizer of a file with a token in base64 and its rank, which is its id, in each line.

    pattern: the regular expression of the parts of a text; pairs of bytes are merged within them.

    Raises:
        CheckpointError: another line, or ranks that are not 0, 1, 2..., or a byte without a token.
    """
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    ids = {
        "".join(map(characters.__getitem__, token)): rank for rank, token in enumerate(_tokens(data, path))
    }
    if missing := [byte for byte, character in characters.items() if character not in ids]:
        raise CheckpointError(f"{path}: no token for the byte {missing[0]}; all 256 are needed")
    merges = merges_of(ids, {token: -rank for token, rank in ids.items()})
    backend = Backend(BPE(ids, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _tokens(data: bytes, path: Path) -> list[bytes]:
    """Decodes the tokens, by rank."""
    by_rank: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            encoded, rank = line.split()
            if int(rank) != len(by_rank):
                raise CheckpointError(
                    f"{path}, line {number}: rank {int(rank)}; must be {len(by_rank)}, one after the other"
                )
            by_rank.append(base64.b64decode(encoded, validate=True))
        except ValueError:
            raise CheckpointError(
                f"{path}, line {number}: must be a token in base64 and its rank, found {line[:40]!a}"
            ) from None
    if len({*by_rank}) < len(by_rank) or b"" in by_rank:
        raise CheckpointError(f"{path}: a token is there twice, or empty")
    return by_rank


_IN_TURN = (
    "{% for message in messages %}{% if message['role'] != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('messages must be of user and assistant in turn, the user first') }}{% endif %}"
    "{% if add_generation_prompt and loop.last and message['role'] != 'user' %}"
    "{{ raise_exception('the last message must be of the user, to be answered') }}{% endif %}{% endfor %}"
)
CHATGLM_6B = (
    f"{_IN_TURN}{{% for message in messages %}}"
    "{% if messages | length == 1 %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '[Round ' ~ loop.index0 // 2 ~ ']\\n问：' ~ message['content'] ~ '\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[gMASK]<sop>{% endif %}"
)
"""Rounds are counted from 0; a single question is asked as it is."""
CHATGLM2 = (
    f"{_IN_TURN}[gMASK]sop{{% for message in messages %}}"
    "{% if message['role'] == 'user' %}"
    "{{ '[Round ' ~ (loop.index0 // 2 + 1) ~ ']\\n\\n问：' ~ message['content'] ~ '\\n\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n\\n' }}{% endif %}{% endfor %}"
)


VOCABULARY = "tokenizer.model"
SENTENCEPIECE, TIKTOKEN = "ChatGLMTokenizer", "ChatGLM4Tokenizer"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")  # of ChatGLM3, unused in ChatGLM2
COMMANDS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *ROLES)
"""Behind the pieces of a sentencepiece model."""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How GLM-4 parts a text."""


def load_glm(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """The folder's tokenizer; None where its settings name neither class, or it has no tokenizer.model.

    Raises:
        CheckpointError: a damaged file, or one of another kind of tokenizer.
    """
    name = settings.get("tokenizer_class")
    if name not in (SENTENCEPIECE, TIKTOKEN) or not has_file(folder, VOCABULARY):
        return None
    with checked_copy(folder, [VOCABULARY]) as copy:
        data = (copy / VOCABULARY).read_bytes()
        checked = json.loads((copy / SETTINGS).read_bytes())
    path = folder / VOCABULARY
    if name == SENTENCEPIECE:
        backend = sentencepiece_backend(data, path)
        backend.add_special_tokens(list(COMMANDS))
        start, named = ("[gMASK]", "sop"), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    else:
        backend = tiktoken_backend(data, path, PATTERN)
        _add_listed(backend, checked.get("added_tokens_decoder"), folder)
        start, named = ("[gMASK]", "<sop>"), {"eos_token": "<|endoftext|>"}
    _put_before_texts(backend, start, path)
    return kept(backend, named, checked.get("chat_template") or _own_form(folder), folder)


def _own_form(folder: Path) -> str | None:
    """ChatGLM2's form of chats, where config.json says that it is one: ChatGLM3 has the same class."""
    name = read_json_file(folder, CONFIG_NAME).get("_name_or_path")
    return CHATGLM2 if isinstance(name, str) and "chatglm2" in name.lower() else None


def _add_listed(backend: Backend, listed: Any, folder: Path) -> None:
    """Adds the tokens that the settings list by number; they must follow the file's own."""
    try:
        numbers = sorted(map(int, listed))
        tokens = [AddedToken(**listed[str(number)]) for number in numbers]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder must have a token with its flags for each number"
        ) from error
    first = backend.get_vocab_size()
    if numbers != [*range(first, first + len(numbers))]:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder has {len(numbers)} tokens from {numbers[:1]} on; "
            f"must be the numbers behind those of {VOCABULARY}, from {first} on, without a gap"
        )
    backend.add_tokens(tokens)


def _put_before_texts(backend: Backend, start: tuple[str, str], path: Path) -> None:
    ids = [(token, backend.token_to_id(token)) for token in start]
    if missing := [token for token, number in ids if number is None]:
        raise CheckpointError(f"{path}: no token {' and '.join(missing)}, with which every text begins")
    backend.post_processor = TemplateProcessing(single=[*start, "$A"], special_tokens=ids)
