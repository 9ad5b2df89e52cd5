"""Imports point in one direction, between packages and inside `engines`."""

from __future__ import annotations

import sys

import pytest

from tests.architecture.sources import PACKAGES, Module, modules, within

_ORDER = ("container", "lmi_server", "engines", "lmi_kernels")
"""Each package may import those to its right."""

_ENGINE_LEVELS: dict[str, int] = {
    "engines": 0,
    "engines.capabilities": 0,
    "engines.config": 0,
    "engines.core": 0,
    "engines.errors": 0,
    "engines.health": 0,
    "engines.invocations": 0,
    "engines.partition": 0,
    "engines.process": 0,
    "engines.registry": 0,
    "engines.stopwatch": 0,
    "engines.vocabulary": 0,
    "engines.base": 1,
    "engines.front": 2,
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

_STEP_ONLY = {"engines.health", "engines.wire", "engines.metrics", "engines.base", "engines.client"}
"""Modules with which the step loop communicates. Models must not import them."""


def _part(name: str) -> str:
    """`engines.models.decoder` -> `engines.models`: the longest prefix in the table, else the first two words."""
    words = name.split(".")
    prefixes = [".".join(words[:count]) for count in range(len(words), 1, -1)]
    return next(
        (prefix for prefix in prefixes if prefix in _ENGINE_LEVELS), prefixes[-1] if prefixes else name
    )


def _all_modules() -> list[Module]:
    assert len(modules()) > 60, "the packages were not found"
    return list(modules())


def test_packages_import_only_packages_to_their_right() -> None:
    wrong = []
    for module in _all_modules():
        for name, node in module.imports():
            top = name.partition(".")[0]
            if top in PACKAGES and _ORDER.index(top) < _ORDER.index(module.package):
                wrong.append(f"{module.at(node)} imports {name}")
    assert not wrong, wrong


def test_every_part_of_engines_has_a_level() -> None:
    parts = {_part(module.name) for module in _all_modules() if module.package == "engines"}
    assert parts <= set(_ENGINE_LEVELS), "give the new part its level in _ENGINE_LEVELS"


def test_parts_of_engines_import_only_lower_levels() -> None:
    wrong = []
    for module in _all_modules():
        if module.package != "engines":
            continue
        part = _part(module.name)
        for name, node in module.imports():
            other = _part(name)
            if other not in _ENGINE_LEVELS or other == part:
                continue
            if _ENGINE_LEVELS[other] >= max(_ENGINE_LEVELS[part], 1):
                wrong.append(f"{module.at(node)}: {part} imports {name}")
    assert not wrong, wrong


@pytest.mark.parametrize(
    "part", ["engines.kv_cache", "engines.parallel", "engines.sampling", "engines.layers", "engines.models"]
)
def test_models_do_not_import_the_wire(part: str) -> None:
    wrong = [
        f"{module.at(node)} imports {name}"
        for module in _all_modules()
        if within(module.name, part)
        for name, node in module.imports()
        if _part(name) in _STEP_ONLY
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("one", "other"), [("engines.mpi", "engines.python"), ("engines.python", "engines.mpi")]
)
def test_engines_do_not_import_each_other(one: str, other: str) -> None:
    wrong = [
        f"{module.at(node)} imports {name}"
        for module in _all_modules()
        if within(module.name, one)
        for name, node in module.imports()
        if within(name, other)
    ]
    assert not wrong, wrong


def test_engines_import_kernels_only_from_their_two_packages() -> None:
    wrong = [
        f"{module.at(node)} imports {name}"
        for module in _all_modules()
        if module.package == "engines"
        for name, node in module.imports()
        if within(name, "lmi_kernels") and name.removeprefix("lmi_kernels.cpu").count(".") > 1
    ]
    assert not wrong, wrong


def test_kernels_import_only_torch_triton_and_the_standard_library() -> None:
    allowed = {"lmi_kernels", "torch", "triton"} | sys.stdlib_module_names
    wrong = [
        f"{module.at(node)} imports {name}"
        for module in _all_modules()
        if module.package == "lmi_kernels"
        for name, node in module.imports()
        if name.partition(".")[0] not in allowed
    ]
    assert not wrong, wrong


_MAY_IMPORT_TRANSFORMERS = ("engines.python", "engines.models.foreign")
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
    wrong = [
        f"{module.at(node)} imports {name}"
        for module in _all_modules()
        if module.package in packages
        for name, node in module.imports()
        if name.partition(".")[0] in forbidden
        if not (
            name.partition(".")[0] == "transformers"
            and any(within(module.name, part) for part in _MAY_IMPORT_TRANSFORMERS)
        )
    ]
    assert not wrong, wrong
