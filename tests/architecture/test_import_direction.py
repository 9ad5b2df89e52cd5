"""Imports point in one direction, between packages and inside `engines`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import pytest

from tests.architecture.sources import modules, within

_ORDER = ("container", "lmi_server", "engines", "lmi_kernels")
"""Each package may import those to its right."""

_ENGINE_LEVELS: dict[str, int] = {
    "engines": 0,
    "engines.capabilities": 0,
    "engines.config": 0,
    "engines.core": 0,
    "engines.errors": 0,
    "engines.git_lfs": 0,
    "engines.health": 0,
    "engines.host_memory": 0,
    "engines.invocations": 0,
    "engines.partition": 0,
    "engines.process": 0,
    "engines.registry": 0,
    "engines.start": 0,
    "engines.stopwatch": 0,
    "engines.vocabulary": 0,
    "engines.base": 1,
    "engines.engine_socket": 2,
    "engines.metrics": 1,
    "engines.wire": 1,
    "engines.kv_cache": 1,
    "engines.native_kv_cache": 1,
    "engines.parallel": 1,
    "engines.sampling": 2,
    "engines.layers": 2,
    # The description of a model is plain data, which layers need too.
    "engines.models.config": 1,
    "engines.models.architectures": 2,
    "engines.models": 3,
    "engines.mpi": 4,
    "engines.python": 4,
    "engines.client": 5,
    "engines.copies": 6,
}
"""Levels of the parts of `engines`; add new parts here. A module may import from its own part and from lower levels.
Parts at level 0 may import each other.
"""

_MODEL = ("engines.kv_cache", "engines.parallel", "engines.sampling", "engines.layers", "engines.models")
_STEP_ONLY = {"engines.health", "engines.wire", "engines.metrics", "engines.base", "engines.client"}
"""Modules with which the step loop communicates. Models must not import them."""


@cache
def _part(name: str) -> str:
    """`engines.models.decoder` -> `engines.models`: the longest prefix in the table, else the first two words."""
    words = name.split(".")
    prefixes = [".".join(words[:count]) for count in range(len(words), 1, -1)]
    return next((prefix for prefix in prefixes if prefix in _ENGINE_LEVELS), ".".join(words[:2]))


def _require_no_import(wrong: Callable[[str, str], bool]) -> None:
    """Fail for imports for which `wrong(importing module, imported name)` holds."""
    found = [
        f"{module.at(node)}: {module.name} imports {name}"
        for module in modules()
        for name, node in module.imports
        if wrong(module.name, name)
    ]
    assert not found, found


def _within_any(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(within(name, prefix) for prefix in prefixes)


def test_packages_import_only_packages_to_their_right() -> None:
    _require_no_import(
        lambda module, name: _within_any(name, _ORDER[: _ORDER.index(module.partition(".")[0])])
    )


def test_every_part_of_engines_has_a_level() -> None:
    parts = {_part(module.name) for module in modules() if module.package == "engines"}
    assert parts <= set(_ENGINE_LEVELS), "give the new part its level in _ENGINE_LEVELS"


def test_parts_of_engines_import_only_lower_levels() -> None:
    def wrong(module: str, name: str) -> bool:
        part, other = _part(module), _part(name)
        if part == other or not {part, other} <= set(_ENGINE_LEVELS):
            return False
        return _ENGINE_LEVELS[other] >= max(_ENGINE_LEVELS[part], 1)

    _require_no_import(wrong)


def test_models_do_not_import_the_wire() -> None:
    _require_no_import(lambda module, name: _within_any(module, _MODEL) and _part(name) in _STEP_ONLY)


def test_engines_import_kernels_only_from_their_two_packages() -> None:
    _require_no_import(
        lambda module, name: (
            within(module, "engines")
            and within(name, "lmi_kernels")
            and name.removeprefix("lmi_kernels.cpu").count(".") > 1
        )
    )


def test_kernels_import_only_torch_triton_and_the_standard_library() -> None:
    allowed = {"lmi_kernels", "torch", "triton"} | sys.stdlib_module_names
    _require_no_import(
        lambda module, name: within(module, "lmi_kernels") and name.partition(".")[0] not in allowed
    )


_MAY_IMPORT_TRANSFORMERS = ("engines.python", "engines.models.transformers_backend")
"""Parts that may import transformers: the engine that calls `generate`, and transformers' models on our KV cache."""
_WEB_ONLY = ("flask", "werkzeug", "gunicorn", "jinja2", "tokenizers", "prometheus_client")


@pytest.mark.parametrize(
    ("packages", "forbidden"),
    [
        (("engines", "lmi_kernels"), (*_WEB_ONLY, "boto3", "click", "rich", "transformers")),
        (("lmi_server",), ("torch", "transformers", "triton", "mpi4py", "boto3", "zmq")),
    ],
    ids=["engines", "web"],
)
def test_packages_do_not_import_libraries_of_other_levels(
    packages: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    def wrong(module: str, name: str) -> bool:
        if within(name, "transformers") and _within_any(module, _MAY_IMPORT_TRANSFORMERS):
            return False
        return _within_any(module, packages) and _within_any(name, forbidden)

    _require_no_import(wrong)
