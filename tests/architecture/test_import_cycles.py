"""There are no import cycles, including imports inside functions."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping

from tests.architecture.sources import modules


def _imported(name: str, known: Mapping[str, object]) -> str | None:
    """The known module that `import name` loads: `a.b` for `a.b.c` if `c` is not a module."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def _graph() -> dict[str, set[str]]:
    """The known modules that each module imports, without their parent packages."""
    known = {module.name: module for module in modules()}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for module in known.values():
        found = {_imported(name, known) for name, _ in module.imports}
        graph[module.name] = {name for name in found if name is not None and name != module.name}
    return graph


def test_there_are_no_import_cycles() -> None:
    graph = _graph()
    assert sum(len(imported) for imported in graph.values()) > 200, "imports were not found"
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a cycle
