"""Code that is forbidden in the four packages."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.architecture.sources import PACKAGES, Module, modules, within
from tests.support.paths import REPO_ROOT

_UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
_UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
_UNSAFE_ATTRIBUTES = {"recv_pyobj", "send_pyobj"}
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def _unsafe(node: ast.AST) -> str:
    """Describe the unsafe construct at a node; empty if there is none."""
    match node:
        case ast.Import(names=names):
            found = {alias.name.partition(".")[0] for alias in names} & _UNSAFE_MODULES
            return f"import {found.pop()}" if found else ""
        case ast.ImportFrom(module=str(module), names=names):
            if module.partition(".")[0] in _UNSAFE_MODULES:
                return f"from {module} import"
            if module == "torch" and any(alias.name == "load" for alias in names):
                return "from torch import load"
            return ""
        case ast.Call(func=ast.Name(id=name)) if name in _UNSAFE_BUILTINS:
            return f"{name}(...)"
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return "torch.load"
        case ast.Attribute(attr=name) if name in _UNSAFE_ATTRIBUTES:
            return name
        case ast.keyword(arg="allow_pickle", value=value):
            return "" if isinstance(value, ast.Constant) and value.value is False else "allow_pickle"
    return ""


def _environment(node: ast.AST) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _ENVIRONMENT:
            return f"os.{name}"
        case ast.ImportFrom(module="os", names=names):
            found = {alias.name for alias in names} & _ENVIRONMENT
            return f"from os import {found.pop()}" if found else ""
    return ""


def _current_folder(node: ast.AST) -> str:
    """Find commands that let Python import from the current folder, which may be a model's."""
    match node:
        case ast.List(elts=words) | ast.Tuple(elts=words):
            values = [word.value if isinstance(word, ast.Constant) else None for word in words]
            return "-m without -P" if ("-m" in values and "-P" not in values) else ""
    return ""


def _assert(node: ast.AST) -> str:
    return "assert" if isinstance(node, ast.Assert) else ""


def _violations(rule: Callable[[ast.AST], str], applies_to: Callable[[Module], bool]) -> list[str]:
    return [
        f"{module.at(node)}: {violation}"
        for module in modules()
        if applies_to(module)
        for node in module.nodes
        if (violation := rule(node))
    ]


@pytest.mark.parametrize(
    "rule",
    [_unsafe, _current_folder, _assert],
    ids=["code executed from data", "imports from the current folder", "assert statements"],
)
def test_no_module_contains(rule: Callable[[ast.AST], str]) -> None:
    wrong = _violations(rule, lambda module: True)
    assert not wrong, wrong


_READ_THE_ENVIRONMENT = (
    "container",
    "lmi_server.properties",
    "lmi_kernels._triton",
    "lmi_kernels.cpu.library",
    "engines.mpi.worker",
)


def test_only_listed_modules_read_the_environment() -> None:
    wrong = _violations(
        _environment,
        lambda module: not any(within(module.name, reader) for reader in _READ_THE_ENVIRONMENT),
    )
    assert not wrong, wrong


def test_a_rank_reads_only_its_number_from_the_environment() -> None:
    (worker,) = [module for module in modules() if module.name == "engines.mpi.worker"]
    assert len(_violations(_environment, lambda module: module is worker)) == 1
    assert '"OMPI_COMM_WORLD_RANK"' in worker.path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (_unsafe, "import pickle"),
        (_unsafe, "from dill import loads"),
        (_unsafe, "def f():\n    import marshal"),
        (_unsafe, "eval('1')"),
        (_unsafe, "exec('1')"),
        (_unsafe, "torch.load(path)"),
        (_unsafe, "from torch import load"),
        (_unsafe, "socket.recv_pyobj()"),
        (_unsafe, "numpy.load(path, allow_pickle=True)"),
        (_environment, "os.environ['A']"),
        (_environment, "from os import getenv"),
        (_assert, "assert x"),
        (_current_folder, "run([sys.executable, '-m', 'module'])"),
    ],
)
def test_the_rules_find_violations(rule: Callable[[ast.AST], str], code: str) -> None:
    assert any(rule(node) for node in ast.walk(ast.parse(code)))


def test_no_file_exceeds_the_line_limit() -> None:
    lengths = {module.path: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules()}
    long = {path: length for path, length in lengths.items() if length > 400}
    assert not long, long


def test_every_module_has_a_docstring() -> None:
    wrong = [
        module.name
        for module in modules()
        if module.path.name != "__init__.py" and not ast.get_docstring(module.tree)
    ]
    assert not wrong, wrong


def test_the_kernels_folder_is_not_a_package() -> None:
    """transformers would mistake such a package for Hugging Face's `kernels`."""
    assert not (REPO_ROOT / "kernels" / "__init__.py").exists()
    assert (PACKAGES["lmi_kernels"] / "__init__.py").exists()
