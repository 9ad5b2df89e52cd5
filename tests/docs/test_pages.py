"""Pages, headings, files, options, commands, variables and metrics that the documentation names exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
import pytest

from container.cli import main
from container.explain.models_command import known_models
from container.run import gunicorn_conf
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.table import PARAMETERS
from lmi_server.config import ServerConfig
from lmi_server.http.body import MIN_BYTES_IN_FLIGHT
from lmi_server.http.connection import ConnectionLimits
from lmi_server.http.json_object import MAX_VALUES
from lmi_server.properties.environment import ENV_NAMES, variables_of
from lmi_server.properties.options import by_name
from lmi_server.properties.other_servers import COUNTERPARTS
from tests.docs.pages import Page, pages, read
from tests.support.paths import REPO_ROOT

TOP_FOLDERS = ("container", "lmi_server", "engines", "kernels", "tests", "docs", "properties_examples")
"""Top-level folders. Paths in them are checked."""
EXTERNAL_FILES = {
    *("generation_config.json", "model.py", "requirements.txt", "chat_template.json", "tekken.json"),
    *("tokenizer_config.json", "tokenizer.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("results.json", "aws-post.md", "lmi-compare.md"),
    *("special_tokens_map.json", "llama.cpp"),
}
"""Files of a model folder, files that a command writes, and a program."""
EXTERNAL_OPTIONS = {
    *("--gpus", "--shm-size", "--stop-timeout", "--cpus", "--memory"),
    *("--read-only", "--tmpfs", "--revision", "--dtype", "--max-model-len", "--tensor-parallel-size"),
    *("--data-parallel-size", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"),
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-dtype", "--quantization", "--api-key"),
    *("--served-model-name", "--tokenizer", "--trust-remote-code", "--download-dir", "--load-format"),
    *("--scheduling-policy", "--block-size", "--swap-space", "--chat-template"),
    *("--enable-lora", "--tool-call-parser", "--speculative-config", "--structured-outputs-config"),
    "--guided-decoding-backend",
}
"""Options of other programs."""
SUFFIXES = (".py", ".md", ".c", ".cpp", ".inc", ".h", ".json", ".toml", ".txt", ".properties")

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


def test_the_readme_is_short() -> None:
    assert len((REPO_ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_readme_and_the_index_of_the_docs_link_to_every_page() -> None:
    indexes = REPO_ROOT / "README.md", REPO_ROOT / "docs/README.md"
    links = [(path, link.partition("#")[0]) for path in indexes for link in read(path).links()]
    linked = {(path.parent / target).resolve() for path, target in links} | {indexes[1]}
    assert sorted(set((REPO_ROOT / "docs").glob("*.md")) - linked) == []


def test_the_index_of_the_docs_has_the_rows_of_the_readme() -> None:
    readme, index = (read(REPO_ROOT / name).rows("Documentation") for name in ("README.md", "docs/README.md"))
    assert len(index) >= 8
    assert [[cell.replace("](docs/", "](") for cell in row] for row in readme] == index


def test_the_api_reference_names_every_supported_parameter() -> None:
    spans = set(read(REPO_ROOT / "docs/api.md").spans())
    supported = [row for row in PARAMETERS if row.neutral is None]
    names = {name for row in supported for column in Names for name in row.names(column)}
    assert sorted(names - spans) == []


@pytest.mark.parametrize("name", ["README.md", "docs/batching-and-scheduling.md", "docs/models.md"])
def test_the_numbers_of_architectures_are_those_of_lmi_models(name: str) -> None:
    text = " ".join((REPO_ROOT / name).read_text(encoding="utf-8").split())
    counts = Counter(model.way for model in known_models())
    more = f"{counts['transformers']} more with transformers' modules"
    assert re.search(rf"\b{counts['lmi']} architectures\b.{{,12}} {more}", text)


def test_every_variable_of_tgi_in_the_table_is_read_or_has_a_note() -> None:
    rows = read(REPO_ROOT / "docs/configuration.md").rows("Migrating from TGI")
    named = {name for row in rows for name in re.findall(r"`([A-Z][A-Z_]+)`", row[0])}
    assert len(named) > 10
    assert named <= {name.variable for name in ENV_NAMES} | COUNTERPARTS.keys()


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


def unknown_options(page: Page) -> set[str]:
    return set(re.findall(r"option\.[A-Za-z]\w*", code(page))) - set(by_name())


def unknown_command_line_options(page: Page) -> set[str]:
    named = {span.split()[0].partition("=")[0] for span in page.spans() if span.startswith("--")}
    known = EXTERNAL_OPTIONS.union(*map(options_of, main.list_commands(click.Context(main))))
    return {name for name in named - known if f'"{name}"' not in sources()}


def unknown_environment_variables(page: Page) -> set[str]:
    named = set(re.findall(r"\b(?:LMI|OPTION|SERVING|SAGEMAKER|HF)_[A-Z][A-Z_]*[A-Z]\b", code(page)))
    listed = {variable for name in by_name() for variable in variables_of(name)}
    return {name for name in named - listed - {"HF_ENDPOINT"} if name not in sources()}


def unknown_metrics(page: Page) -> set[str]:
    named = {span for span in page.spans() if re.fullmatch(r"lmi_[a-z_]+", span)}
    packages = {"lmi_server", "lmi_kernels"}
    return {name for name in named - packages if f'"{name.removesuffix("_total")}' not in sources()}


@pytest.mark.parametrize(
    "unknown", [unknown_options, unknown_command_line_options, unknown_environment_variables, unknown_metrics]
)
@page_by_page
def test_names_exist(page: Page, unknown: Callable[[Page], set[str]]) -> None:
    assert unknown(page) == set()


def options_of(command: str) -> set[str]:
    """The command line options of an `lmi` command."""
    found = main.get_command(click.Context(main), command)
    assert found is not None, command
    return {option for parameter in found.params for option in parameter.opts}


@page_by_page
def test_commands_and_their_options_exist(page: Page) -> None:
    for span in page.spans():
        if re.match(r"lmi [a-z]", span):
            words = span.split()
            options = {word for word in words if word.startswith("--")}
            assert options <= options_of(words[1]), span


def test_the_documented_http_limits_are_the_defaults() -> None:
    limits, config = ConnectionLimits(), ServerConfig()
    slow = f"less than {limits.bytes_per_second >> 10} KiB/s on average over {limits.stall_seconds:g} s"
    size, seconds = config.max_request_size >> 20, limits.body_seconds
    fields, line = gunicorn_conf.limit_request_fields, gunicorn_conf.limit_request_line
    request = f"{fields} headers, {line:,} bytes of request line"
    expected = {
        "headers": f"{limits.head_seconds:g} s from the first byte; {limits.head_bytes >> 10} KiB in total, {request}",
        "body": f"({size} MiB; at most 128 MiB with a handler or input formatter); {MAX_VALUES:,} JSON values;"
        f" {seconds:g} s. A client that sends {slow} gets 408",
        "bodies being read and parsed at once": f"{MIN_BYTES_IN_FLIGHT >> 20} MiB",
        "a response that the client does not read": f"{slow}, or needs more than {limits.send_seconds:g} s plus 1 s per"
        f" {limits.send_bytes_per_second >> 10} KiB for a whole response",
        "idle connection": f"{gunicorn_conf.keepalive:,} s",
    }
    table = dict(read(REPO_ROOT / "docs/operating.md").rows("HTTP limits"))
    assert {row: text for row, text in expected.items() if text not in table[row]} == {}
