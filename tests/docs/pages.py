"""Parse the documentation: pages, fenced blocks, commands, code spans, links and headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.paths import REPO_ROOT

GENERATED = ("options.md", "unsupported-options.md", "gpu-results.md")
"""Generated pages. Links to them are checked, their text is not."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or one command of it."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file."""

    path: Path
    tokens: tuple[Token, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPO_ROOT))

    def blocks(self, *languages: str) -> list[Block]:
        """The fenced blocks of these languages; all by default. Indented code is a block without a language."""
        found = [token for token in self.tokens if token.type in ("fence", "code_block")]
        blocks = [
            Block(self.name, (token.map or [0])[0] + 1, token.info.strip(), token.content) for token in found
        ]
        return [block for block in blocks if not languages or block.language in languages]

    def inline(self, kind: str) -> list[Token]:
        """The tokens of one kind (`code_inline`, `link_open`) in paragraphs, tables and headings."""
        return [child for token in self.tokens for child in token.children or () if child.type == kind]

    def spans(self) -> list[str]:
        """The text of each inline code span."""
        return [token.content for token in self.inline("code_inline")]

    def links(self) -> list[str]:
        return [str(token.attrs["href"]) for token in self.inline("link_open")]

    def anchors(self) -> set[str]:
        """The anchors that GitHub generates for the headings."""
        following = zip(self.tokens, self.tokens[1:], strict=False)
        titles = [after.content for token, after in following if token.type == "heading_open"]
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def rows(self, heading: str) -> list[list[str]]:
        """The body rows of the first table below a heading, as cells of Markdown."""
        text = self.path.read_text(encoding="utf-8")
        section = text.split(f" {heading}\n", 1)[1]
        lines = [line for line in re.split(r"\n#+ ", section)[0].splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def read(path: Path) -> Page:
    return Page(path, tuple(MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))))


@cache
def pages() -> tuple[Page, ...]:
    """All pages that are not generated."""
    docs = sorted(path for path in (REPO_ROOT / "docs").glob("*.md") if path.name not in GENERATED)
    return tuple(map(read, (REPO_ROOT / "README.md", *docs, REPO_ROOT / "properties_examples/README.md")))


def blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in page.blocks(*languages)]


def commands() -> list[Block]:
    """All commands of all shell blocks, with their continuation lines joined."""
    found: list[Block] = []
    for block in blocks("shell"):
        joined = ""
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            joined += line.removesuffix("\\")
            if not line.endswith("\\"):
                text, joined = joined.strip(), ""
                if text and not text.startswith("#"):
                    found.append(Block(block.page, number, block.language, text))
    return found
