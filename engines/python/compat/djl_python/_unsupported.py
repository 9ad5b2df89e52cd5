"""Modules of LMI's `djl_python` that are not provided. Importing one raises an error that names the alternative."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_GENERATES = (
    "the server generates text itself; remove the handler, or keep only @input_formatter and @output_formatter in"
    " model.py"
)
_SKLEARN = "write @init_handler and @prediction_handler, which load the model and predict"
_ADVICE = {
    **dict.fromkeys(
        (
            *("huggingface", "deepspeed", "fastertransformer", "tensorrt_llm", "tensorrt_llm_python"),
            *(
                "transformers_neuronx",
                "lmi_vllm",
                "lmi_trtllm",
                "rolling_batch",
                "scheduler",
                "seq_scheduler",
            ),
        ),
        _GENERATES,
    ),
    "sklearn_handler": _SKLEARN,
    "xgboost_handler": _SKLEARN,
    "sagemaker": "name the file of model_fn, input_fn, predict_fn and output_fn in option.entryPoint",
    "chat_completions": "send `messages` to /v1/chat/completions, which the server answers itself",
    "properties_manager": "read the options from inputs.get_properties() in the first call",
    **dict.fromkeys(
        ("session_manager", "session_utils", "SessionManager", "get_session_manager"),
        "keep the state of sessions in the handler, or outside of the server",
    ),
    "stable_diffusion_inf2": "load the pipeline of diffusers in the handler's first call",
}
"""Advice on what to do instead, by name of the imported module."""


class UnsupportedModules(MetaPathFinder):
    """Raises an explanatory `ImportError` for modules that no other finder has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != __package__ or not name:
            return None
        advice = _ADVICE.get(
            name.partition(".")[0], "it is internal to LMI; the handler needs code of its own"
        )
        raise ImportError(f"{fullname} is not part of this server: {advice}")
