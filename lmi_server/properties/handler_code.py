"""What a user's Python file defines and imports, read from its syntax tree. The file is never executed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.python.handlers.djl_modules import PACKAGE, import_error

_MAX_FILE_BYTES = 4 << 20
_PREDICTS = {"prediction_handler", "predict_fn", "transform_fn"}
_STAGES = {"init_handler", *_PREDICTS}
_FORMATTERS = {"input_formatter", "output_formatter"}


@dataclass(frozen=True, slots=True)
class HandlerCode:
    """The content of a user's file."""

    names: frozenset[str]
    """Names bound at module level, and names of the decorators used there."""
    import_errors: tuple[str, ...]
    """Reasons why imports at module level fail, with their lines."""
    imports: Mapping[str, int]
    """Line by name of the top-level modules that the file imports in any case, in this order.

    Ends at the first statement that may install a package or change `sys.path`.
    """

    @property
    def formatters(self) -> tuple[str, ...]:
        """Roles of the formatters that are marked with decorators."""
        return tuple(sorted(self.names & _FORMATTERS))

    def has_handler(self, function: str) -> bool:
        """Return whether the file defines the function, or a stage of a handler."""
        return self._defines(function, _STAGES)

    def predicts(self, function: str) -> bool:
        """Return whether the file defines the function, or a stage that predicts."""
        return self._defines(function, _PREDICTS)

    def _defines(self, function: str, stages: set[str]) -> bool:
        return not self.names.isdisjoint({function, "*", *stages})


def read_code(path: Path) -> HandlerCode:
    """Parse a file. A file over 4 MiB counts as empty.

    Raises `ValueError` if the file cannot be read or is not valid Python.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= _MAX_FILE_BYTES else b""
        tree = ast.parse(data, str(path))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise ValueError(f"is not valid Python: {place}{error.args[0] if error.args else ''}") from None
    imports: dict[str, int] = {}
    for name, line in _imports(tree.body):
        imports.setdefault(name, line)
    return HandlerCode(frozenset(_names(tree.body)), tuple(_import_errors(tree.body)), imports)


def _names(body: Collection[ast.stmt]) -> Iterator[str]:
    """Yield the names bound at module level and the names of the decorators used there."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name not in _FORMATTERS:
                    yield node.name
                yield from (_last_name(one) for one in node.decorator_list)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                bound = (alias.asname or alias.name for alias in aliases)
                yield from (name for name in bound if name not in _STAGES | _FORMATTERS)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=inner, orelse=other):
                yield from _names([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                yield from _names(
                    [*inner, *(one for handler in handlers for one in handler.body), *other, *last]
                )
            case ast.With(body=inner):
                yield from _names(inner)


def _last_name(decorator: ast.expr) -> str:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _import_errors(body: Collection[ast.stmt]) -> Iterator[str]:
    """Yield the errors of imports of `djl_python`. Imports in `if` and `try` may not run, or may fail without harm."""
    for node in body:
        names: list[str] = []
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module="djl_python", level=0, names=aliases):
                names = [f"{PACKAGE}.{alias.name}" for alias in aliases if alias.name != "*"]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module]
        yield from (f"line {node.lineno}: {error}" for name in names if (error := import_error(name)))


def _imports(body: Collection[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Yield the top-level modules, with their lines, that are imported before anything is called."""
    for node in body:
        match node:
            case ast.Import(names=aliases):
                yield from ((alias.name.partition(".")[0], node.lineno) for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0], node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _ if any(_may_change_path(inner) for inner in ast.walk(node)):
                return


def _may_change_path(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and node.attr == "path")
