"""Read tables and classes from transformers' source, without importing it. The import would take seconds."""

from __future__ import annotations

import ast
import importlib.util
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
ENCODER_DECODER = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
BASE = "MODEL_MAPPING_NAMES"
_parsing = threading.Lock()


def models_folder() -> Path | None:
    """Return the folder with a folder for each model type. None if transformers is not installed."""
    spec = importlib.util.find_spec("transformers")
    folders = (spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) / "models" if folders else None


@cache
def class_table(name: str) -> Mapping[str, tuple[str, ...]]:
    """Return the class names of each model type in an auto class's table. Empty if transformers has no such table.

    The source is like `NAME = OrderedDict([("llama", "LlamaForCausalLM"), ...])`. A value may be a tuple.
    """
    folder = models_folder()
    path = folder / "auto" / "modeling_auto.py" if folder else None
    if path is None or not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            for pair in ast.walk(node.value):
                if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                    first, *names = (
                        str(each.value) for each in ast.walk(pair) if isinstance(each, ast.Constant)
                    )
                    found[first] = tuple(names)
    return found


def parse(path: Path) -> ast.Module:
    """Parse one file at a time, because parsing is not thread-safe in Python 3.11 (python/cpython#106905)."""
    with _parsing:
        return ast.parse(path.read_text(encoding="utf-8"))


@cache
def find_modeling(architecture: str, model_type: str) -> Path | None:
    """Return the file that defines the class `architecture` of a model type; None if there is none."""
    for folder in _folders(model_type):
        for path in folder.glob("modeling_*.py"):
            if f"\nclass {architecture}(" in path.read_text(encoding="utf-8"):
                return path
    return None


@cache
def config_defaults(folder: Path, model_type: str) -> Mapping[str, Any]:
    """Return the attributes with literal values of the configuration class with this model type."""
    for path in folder.glob("configuration_*.py"):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                found = dict(_literals(node))
                if found.get("model_type") == model_type:
                    return found
    return {}


def type_defaults(model_type: str) -> Mapping[str, Any]:
    """Return `config_defaults` of a model type; empty if its configuration class is not in the usual place."""
    found = (config_defaults(folder, model_type) for folder in _folders(model_type))
    return next(filter(None, found), {})


def _folders(model_type: str) -> list[Path]:
    """Return the folders that may define a model type, the longest name first: `qwen2_moe`, then `qwen2`."""
    root, parts = models_folder(), model_type.replace("-", "_").split("_")
    return [root / "_".join(parts[:count]) for count in range(len(parts), 0, -1)] if root else []


def class_source(modeling: str, name: str) -> str:
    """Return the source of a class, without its name and bases; empty if `modeling` does not define it."""
    return modeling.partition(f"\nclass {name}(")[2].partition("\nclass ")[0]


def _literals(node: ast.ClassDef) -> list[tuple[str, Any]]:
    found = []
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        if isinstance(target, ast.Name) and value is not None:
            try:
                found.append((target.id, _value(value)))
            except ValueError:
                continue
    return found


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, or of a product of literals such as `4096 * 32`. Raises ValueError."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = ast.literal_eval(node.left), ast.literal_eval(node.right)
        if all(isinstance(factor, int) for factor in factors):
            return factors[0] * factors[1]
    return ast.literal_eval(node)
