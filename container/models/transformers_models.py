"""Architectures that transformers generates text with, read from its source: importing it takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

_TABLES = {"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"}


@cache
def generating_architectures() -> frozenset[str]:
    """Names as in `architectures` of config.json; empty if transformers has no such tables."""
    spec = importlib.util.find_spec("transformers")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "models" / "auto" / "modeling_auto.py"
        if path.is_file():
            return frozenset(_names(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset()


def _names(tree: ast.Module) -> list[str]:
    """The values of tables like `NAME = OrderedDict([("llama", "LlamaForCausalLM"), ...])`."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in _TABLES for target in node.targets
        ):
            for pair in ast.walk(node.value):
                if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                    texts = [text.value for text in ast.walk(pair.elts[1]) if isinstance(text, ast.Constant)]
                    found += [text for text in texts if isinstance(text, str)]
    return found
