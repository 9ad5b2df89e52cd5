"""Names under which a checkpoint holds the tensors of a module, where they differ from the module's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from engines.models.tensor_files import BadCheckpoint


def stored_names(module: Any, names: Iterable[str]) -> Mapping[str, str]:
    """Return the checkpoint's name of each tensor of a module, as transformers' own loading finds it.

    names: of the checkpoint's tensors.

    Raises:
        BadCheckpoint: transformers would compute a tensor from one of the checkpoint's.
    """
    transforms = get_model_conversion_mapping(module)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    own, found = module.state_dict(), {}
    for stored in sorted(names, key=dot_natural_key):
        name, converted = rename_source_key(stored, renamings, converters, module.base_model_prefix, own)
        if converted is not None:
            raise BadCheckpoint(
                f"tensor {stored!r} is not stored as {type(module).__name__} has it; engine=Python with"
                " option.rolling_batch=disable converts it"
            )
        found[name] = stored
    return found
