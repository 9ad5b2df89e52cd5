"""Map a module's tensor names to those in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from engines.models.tensor_files import BadCheckpoint


def stored_names(module: Any, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the checkpoint's name of each tensor of a module, as transformers would load it. A tensor of all experts
    has several names: those of the experts' tensors, in the order in which they are stacked.

    names: names of the checkpoint's tensors.

    Raises:
        BadCheckpoint: transformers would compute a tensor from one of the checkpoint's.
    """
    transforms = get_model_conversion_mapping(module)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    own = module.state_dict()
    found: dict[str, list[str]] = {}
    for stored in sorted(names, key=dot_natural_key):
        name, converted = rename_source_key(stored, renamings, converters, module.base_model_prefix, own)
        if converted is not None and not _stacks_experts(converters, converted):
            raise BadCheckpoint(
                f"tensor {stored!r} is not stored in the layout of {type(module).__name__}; engine=Python with"
                " option.rolling_batch=disable converts it"
            )
        found.setdefault(name, []).append(stored)
    return found


def _stacks_experts(converters: Sequence[WeightConverter], pattern: str) -> bool:
    """Return whether the conversion only stacks one or two tensors of each expert, the second below the first. The rows
    are in the order of the names: `gate_proj` and `up_proj`, `w1` and `w3`."""
    used = next(each for each in converters if pattern in each.source_patterns)
    kinds = [(type(each), each.dim) for each in used.operations if hasattr(each, "dim")]
    in_order = list(used.source_patterns) == sorted(used.source_patterns)
    return in_order and kinds in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)])
