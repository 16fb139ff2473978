"""The pages of the documentation as tests read them: their blocks, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
_READMES = ("README.md", "CHANGELOG.md", "tools/bench/README.md", "tests/makers/README.md")
PAGES = (*(CHECKOUT / name for name in _READMES), *sorted((CHECKOUT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_HEREDOC = re.compile(r"<<'?(\w+)'?\n.*?^\1$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    code: str


def blocks(language: str = "") -> list[Block]:
    """All fenced blocks, or those of a language."""
    found = (Block(page, *each) for page in PAGES for each in _BLOCK.findall(page.read_text("utf-8")))
    return [block for block in found if language in ("", block.language)]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    """The targets of the page's links that do not lead to the web."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> dict[str, str]:
    """By the anchor of each heading, as code hosts make them, the one that the site makes."""
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading) for heading in _HEADING.findall(prose(page))
    ]
    return {_hosted(heading): _on_the_site(heading) for heading in headings}


def _hosted(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _on_the_site(heading: str) -> str:
    """As Python-Markdown's `toc` does it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def commands() -> list[tuple[Path, list[str]]]:
    """The words of every `mindbatch` command: of blocks of bash, and of code in the text."""
    found = [(block.page, words) for block in blocks("bash") for words in commands_of(block.code)]
    for page in PAGES:
        for span in _SPAN.findall(prose(page)):
            if span.startswith("mindbatch "):
                found += [(page, words) for words in commands_of(" ".join(span.split()))]
    return found


def commands_of(script: str) -> Iterator[list[str]]:
    """The words of each `mindbatch` command of a script, also of one that is a word of another command."""
    for command in _simple_commands(_HEREDOC.sub("", script.replace("\\\n", " "))):
        words = shlex.split(command)
        if "mindbatch" in words and "-m" not in words[: words.index("mindbatch")]:
            yield words[words.index("mindbatch") + 1 :]
        for word in words:
            if word.startswith("mindbatch ") and "\n" not in word:
                yield from commands_of(word)


def _simple_commands(script: str) -> Iterator[str]:
    """What stands between ends of lines, pipes, redirections and the like, outside of quotes; no comments."""
    command, quote, is_comment = "", "", False
    for before, letter in zip(f"\n{script}", f"{script}\n", strict=True):
        if is_comment and letter != "\n":
            continue
        is_comment = not quote and letter == "#" and before.isspace()
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        if not quote and letter in "\n;|&<>":
            yield command
            command = ""
        elif not is_comment:
            command += letter
