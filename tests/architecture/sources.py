"""Syntax trees of the modules in the four packages, and the imports of each module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import REPO_ROOT

PACKAGES = {
    "container": REPO_ROOT / "container",
    "lmi_server": REPO_ROOT / "lmi_server",
    "engines": REPO_ROOT / "engines",
    "lmi_kernels": REPO_ROOT / "kernels" / "lmi_kernels",
}


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the four packages."""

    name: str
    """The dotted name, without `__init__`."""
    path: Path
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imports: tuple[tuple[str, ast.AST], ...]
    """The absolute name of every import in the file, including those in functions.

    `from a.b import c` is `a.b.c`, since c may be a module.
    """

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(REPO_ROOT)}:{getattr(node, 'lineno', 0)}"


def _imports(nodes: Iterable[ast.AST], parts: Sequence[str]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the imports of a module whose path consists of these parts."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            parents = parts[: -node.level] if node.level else ()
            for alias in node.names:
                yield ".".join([*parents, *filter(None, [node.module]), alias.name]), node


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of the four packages."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            nodes = tuple(ast.walk(tree))
            found.append(Module(name, path, tree, nodes, tuple(_imports(nodes, parts))))
    return tuple(found)


def within(name: str, prefix: str) -> bool:
    """Whether a dotted name is `prefix` or a submodule of it."""
    return name == prefix or name.startswith(prefix + ".")
