"""Modules that handlers import: those of LMI's package `djl_python` that `engines/python/compat` provides, and advice
about the others."""

from __future__ import annotations

PACKAGE = "djl_python"
NAMES = ("Input", "Output", "PairList")
"""Names that the package itself has."""
PROVIDED = (
    *("async_utils", "encode_decode", "input_parser", "inputs", "np_util", "output_formatter", "outputs"),
    *("pair_list", "request_io", "streaming_utils"),
)
_TEXT_GENERATION = (
    *("deepspeed", "fastertransformer", "huggingface", "lmi_trtllm", "lmi_vllm", "neuron_utils"),
    *("rolling_batch", "scheduler", "seq_scheduler", "tensorrt_llm", "tensorrt_llm_python"),
    "transformers_neuronx",
)
_SESSIONS = ("Session", "SessionManager", "get_session_manager", "session_manager", "session_utils")
_ADVICE = {
    **dict.fromkeys(
        _TEXT_GENERATION,
        "the server generates text itself, and calls @input_formatter and @output_formatter of model.py",
    ),
    **dict.fromkeys(
        ("sklearn_handler", "xgboost_handler"),
        "write @init_handler and @prediction_handler, which load the model and predict",
    ),
    **dict.fromkeys(_SESSIONS, "keep the state of sessions in the handler, or outside of the server"),
    "sagemaker": "name the file of model_fn, input_fn, predict_fn and output_fn in option.entryPoint",
    "chat_completions": "send `messages` to /v1/chat/completions, which the server answers itself",
    "properties_manager": "read the options from inputs.get_properties() in the first call",
    "stable_diffusion_inf2": "load the pipeline of diffusers in the handler's first call",
}
"""Advice on what to do instead, by name of the imported module."""
IF_MISSING = "install it into the image or list it in requirements.txt"
"""Advice about a module outside of `djl_python` that is missing."""


def import_error(name: str) -> str:
    """Return why a name such as `djl_python.huggingface` cannot be imported; empty if the server provides it."""
    package, _, module = name.partition(".")
    module = module.partition(".")[0]
    if package != PACKAGE or module in ("", *NAMES, *PROVIDED):
        return ""
    advice = _ADVICE.get(module, "it is internal to LMI; the handler needs code of its own")
    return f"{name} is not part of this server; remove this import and what uses it: {advice}"
