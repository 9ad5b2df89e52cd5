"""Read facts about architectures from transformers' source, without importing it. The import would take seconds."""

from __future__ import annotations

import ast
import importlib.util
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engines.models.foreign.split import NORMS_OF_ALL_HEADS, with_split_norms

_CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_ENCODER_DECODER = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
_parsing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Source:
    """The source of one architecture."""

    architecture: str
    modeling: str
    """Text of the modeling file."""
    defaults: Mapping[str, Any]
    """Attributes of the configuration class with literal values."""

    @property
    def other_names(self) -> Mapping[str, str]:
        """Architecture's own names of common config.json fields, by the common name."""
        return self.defaults.get("attribute_map") or {}

    @property
    def plan(self) -> Mapping[str, str] | None:
        """Tensor-parallel style of modules, by pattern of their names. None if transformers has no plan."""
        plan = self.defaults.get("base_model_tp_plan")
        return with_split_norms(plan) if plan and NORMS_OF_ALL_HEADS in self.modeling else plan


@cache
def generating_architectures() -> frozenset[str]:
    """Return names as in the `architectures` field of config.json. Empty if transformers has no such tables."""
    tables = (_table(name) for name in (_CAUSAL, _ENCODER_DECODER))
    return frozenset(name for table in tables for names in table.values() for name in names)


def generates(architecture: str, config: Mapping[str, Any]) -> bool:
    """Return whether transformers' auto classes load this model by a class of its own. config: its config.json.

    They select by the model type. A class name that differs from the tables' belongs to the type if it begins alike,
    such as InternLM3ForCausalLM, or Qwen3_5ForConditionalGeneration around a text model. Other names stand for other
    code or for other tasks.
    """
    if architecture in generating_architectures():
        return True
    model_type = config.get("model_type")
    types = {name for table in (_CAUSAL, _ENCODER_DECODER) for name in _table(table)}
    if not isinstance(model_type, str) or model_type not in types:
        return False
    plain, beginning = (re.sub("[-_]", "", name).lower() for name in (architecture, model_type))
    wraps_text = isinstance(config.get("text_config"), dict)
    return plain == f"{beginning}forcausallm" or (
        wraps_text and plain == f"{beginning}forconditionalgeneration"
    )


@cache
def causal_architectures() -> Mapping[str, str]:
    """Return the architectures of causal language models, each with one of its model types."""
    table = _table(_CAUSAL)
    return {name: model_type for model_type in reversed(table) for name in table[model_type]}


@cache
def find_source(architecture: str, model_type: str) -> Source | None:
    """Find the source of an architecture. model_type: the field of config.json."""
    root = _root()
    parts = re.split(r"[-_]", model_type)
    for count in range(len(parts), 0, -1):
        folder = root / "models" / "_".join(parts[:count]) if root else Path("/nonexistent")
        for path in folder.glob("modeling_*.py"):
            text = path.read_text(encoding="utf-8")
            if f"\nclass {architecture}(" in text:
                return Source(architecture, text, _defaults(folder, model_type))
    return None


def _root() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    folders = (spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) if folders else None


@cache
def _table(name: str) -> dict[str, tuple[str, ...]]:
    """Return a table like `NAME = OrderedDict([("llama", "LlamaForCausalLM"), ...])`. A value may be a tuple."""
    root = _root()
    path = root / "models" / "auto" / "modeling_auto.py" if root else None
    if path is None or not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for node in _parse(path).body:
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


def _parse(path: Path) -> ast.Module:
    """Parse one file at a time, because parsing is not thread-safe in Python 3.11 (python/cpython#106905)."""
    with _parsing:
        return ast.parse(path.read_text(encoding="utf-8"))


def _defaults(folder: Path, model_type: str) -> dict[str, Any]:
    """Return the `name = literal` attributes of the configuration class with this model type."""
    for path in folder.glob("configuration_*.py"):
        for node in _parse(path).body:
            if isinstance(node, ast.ClassDef):
                found = dict(_literals(node))
                if found.get("model_type") == model_type:
                    return found
    return {}


def _literals(node: ast.ClassDef) -> list[tuple[str, Any]]:
    found = []
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        value = getattr(line, "value", None)
        if isinstance(target, ast.Name) and value is not None:
            try:
                found.append((target.id, ast.literal_eval(value)))
            except ValueError:
                continue
    return found
