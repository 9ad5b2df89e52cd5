"""Pages, headings, files, options, commands, variables and metrics that the documentation names exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest

from container.cli import main
from lmi_server.properties.options import by_name
from lmi_server.properties.reference import rows
from tests.docs.pages import Page, pages, read
from tests.support.paths import REPO_ROOT

TOP_FOLDERS = ("container", "lmi_server", "engines", "kernels", "tests", "docs", "properties_examples")
"""Top-level folders. Paths in them are checked."""
EXTERNAL_FILES = {
    *("config.json", "generation_config.json", "tokenizer.json", "vocab.json", "merges.txt", "steps.jsonl"),
    *(
        "model.py",
        "requirements.txt",
        "results.json",
        "tokenizer.model",
        "spiece.model",
        "tekken.json",
        "vocab.txt",
        "tokenizer_config.json",
        "chat_template.json",
        "aws-post.md",
        "lmi-compare.md",
    ),
    "llama.cpp",
}
"""Files of a model folder, files that a command writes, and a program."""
EXTERNAL_OPTIONS = {
    *("--gpus", "--shm-size", "--restart", "--stop-timeout", "--cpus", "--memory", "--no-deps"),
    *("--read-only", "--tmpfs", "--revision", "--dtype", "--max-model-len", "--tensor-parallel-size"),
    *("--data-parallel-size", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"),
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-dtype", "--quantization", "--api-key"),
}
"""Options of other programs."""
SUFFIXES = (".py", ".md", ".c", ".cpp", ".inc", ".h", ".json", ".toml", ".txt", ".properties")
MAX_README_LINES = 150
MIN_QUESTIONS = 10

page_by_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@cache
def sources() -> str:
    """The source code of the product, the Makefile and the Dockerfile."""
    files = [
        path
        for top in TOP_FOLDERS[:5]
        for path in (REPO_ROOT / top).rglob("*")
        if path.suffix in (".py", ".sh", ".c", ".csv", ".toml")
    ]
    files += [REPO_ROOT / "Makefile", REPO_ROOT / "Dockerfile"]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def file_names() -> set[str]:
    return {path.name for top in TOP_FOLDERS for path in (REPO_ROOT / top).rglob("*.*")} | {
        path.name for path in REPO_ROOT.iterdir()
    }


def code(page: Page) -> str:
    return "\n".join([*page.spans(), *(block.text for block in page.blocks())])


@page_by_page
def test_links_resolve(page: Page) -> None:
    for link in page.links():
        target, _, anchor = link.partition("#")
        if target.startswith(("http://", "https://")):
            continue
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), link
        assert not anchor or anchor in read(path).anchors(), link


def test_the_readme_is_short_and_links_to_every_page() -> None:
    path = REPO_ROOT / "README.md"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES
    linked = {(REPO_ROOT / link.partition("#")[0]).resolve() for link in read(path).links()}
    assert sorted(set((REPO_ROOT / "docs").glob("*.md")) - linked) == []


@page_by_page
def test_files_exist(page: Page) -> None:
    missing = [span for span in page.spans() if is_path(span) and not exists(span)]
    assert missing == []


def is_path(span: str) -> bool:
    if not re.fullmatch(r"[\w./*-]+", span) or span.startswith((".venv", "/", ".")):
        return False
    return span.startswith(tuple(f"{top}/" for top in TOP_FOLDERS)) or span.endswith(SUFFIXES)


def exists(span: str) -> bool:
    if "/" not in span:
        return span in EXTERNAL_FILES or span in file_names()
    places = (
        [span]
        if span.startswith(TOP_FOLDERS)
        else [f"kernels/{span}", f"kernels/lmi_kernels/{span}", f"engines/{span}"]
    )
    return (
        any(any(REPO_ROOT.glob(place.rstrip("/"))) for place in places) or Path(span).name in EXTERNAL_FILES
    )


@page_by_page
def test_options_exist(page: Page) -> None:
    named = set(re.findall(r"option\.[A-Za-z]\w*", code(page)))
    assert sorted(named - set(by_name())) == []


@page_by_page
def test_commands_and_their_options_exist(page: Page) -> None:
    group = click.Context(main)
    for span in page.spans():
        if not re.match(r"lmi [a-z]", span):
            continue
        words = span.split()
        command = main.get_command(group, words[1])
        assert command is not None, span
        known = {name for parameter in command.params for name in parameter.opts}
        assert [word for word in words if word.startswith("--") and word not in known] == [], span


@page_by_page
def test_command_line_options_exist(page: Page) -> None:
    group = click.Context(main)
    names = main.list_commands(group)
    known = {
        opt
        for name in names
        for one in [main.get_command(group, name)]
        if one
        for p in one.params
        for opt in p.opts
    }
    named = {span.split()[0].partition("=")[0] for span in page.spans() if span.startswith("--")}
    assert sorted(name for name in named - known - EXTERNAL_OPTIONS if f'"{name}"' not in sources()) == []


@page_by_page
def test_environment_variables_exist(page: Page) -> None:
    listed = {variable for row in rows() for variable in row.variables}
    named = set(re.findall(r"\b(?:LMI|OPTION|SERVING|SAGEMAKER|HF)_[A-Z][A-Z_]*[A-Z]\b", code(page)))
    assert sorted(name for name in named - listed if name not in sources() and name != "HF_ENDPOINT") == []


@page_by_page
def test_metrics_exist(page: Page) -> None:
    named = {span for span in page.spans() if re.fullmatch(r"lmi_[a-z_]+", span)} - {
        "lmi_server",
        "lmi_kernels",
    }
    unknown = [name for name in named if f'"{name.removesuffix("_total")}' not in sources()]
    assert sorted(unknown) == []


def test_the_files_of_where_to_find_what_are_named_by_the_architecture_page() -> None:
    architecture = (REPO_ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = read(REPO_ROOT / "docs/contributing.md").rows("Where to find what")
    assert len(table) >= MIN_QUESTIONS
    for question, answer in table:
        files = [span for span in re.findall(r"`([^`]+)`", answer) if is_path(span)]
        assert files, question
        assert all(exists(file) for file in files), question
        named = [file for file in files if file in architecture or f"{Path(file).parent}/" in architecture]
        assert named == files, question
