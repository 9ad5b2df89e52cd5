"""The table of options: one row for each key that this server acts on, here and in `options_scheduler.py`.

Keys that LMI knows and that are not done here stand in `known_options.csv`. From the tables come parsing, the
`OPTION_*` and `SERVING_*` environment forms, validation, suggestions, `lmi check`, `lmi options` and docs/options.md.
To add an option: a field with a docstring in its owner's class in `lmi_server/config.py`, where the default stands,
and a row here of the same name.
"""

from __future__ import annotations

from lmi_server.properties.known_options import KNOWN_OPTIONS
from lmi_server.properties.option import Option
from lmi_server.properties.options_scheduler import SCHEDULER_OPTIONS
from lmi_server.values.scalars import Bool, Choice, Float, Int, PathText, Text

_JAVA_ENGINE = "a Java engine of DJL Serving; this server generates text with engine=MPI"
_OTHER_ROLLING = "this server has one rolling-batch engine of its own; write auto"
_CHAT_FORMAT = "chat requests get OpenAI's shapes without it; leave the line out"
_ENGINES_NOT_DONE = {
    "DeepSpeed": "DeepSpeed is not part of this server; write engine=MPI",
    "FasterTransformer": "FasterTransformer is not part of this server; write engine=MPI",
    **dict.fromkeys(
        (
            *("PyTorch", "OnnxRuntime", "TensorFlow", "TensorRT", "Rust", "XGBoost", "LightGBM"),
            *("PaddlePaddle", "MXNet", "TFLite", "TritonServer", "Llama"),
        ),
        _JAVA_ENGINE,
    ),
}
_FORMATS_NOT_READ = (
    *("pt", "npcache", "gguf", "mistral", "bitsandbytes", "sharded_state", "tensorizer", "fastsafetensors"),
    *("runai_streamer", "runai_streamer_sharded"),
)

_SERVED: tuple[Option, ...] = (
    Option(
        "engine",
        Choice(("MPI", "Python", "Rolling"), refused=_ENGINES_NOT_DONE, any_case=False),
        "MPI schedules every step anew (rolling batching); Python batches whole requests (dynamic batching). As in"
        " files for today's LMI, Rolling means MPI, and so does Python with option.rolling_batch (but for disable) or"
        " option.async_mode=true.",
        example="MPI",
    ),
    Option(
        "job_queue_size",
        Int(1, 1_000_000),
        "Requests that may wait for a place in a batch; more are refused at once.",
        example="500",
    ),
    Option(
        "batch_size",
        Int(1, 4096),
        "Requests that engine=Python collects into one batch.",
        engine="Python",
        aliases=("max_dynamic_batch_size",),
        example="4",
    ),
    Option(
        "max_batch_delay",
        Int(0, 3_600_000),
        "Milliseconds that a batch of engine=Python may wait to fill, while none is running.",
        engine="Python",
        example="100",
    ),
    Option(
        "option.model_id",
        PathText("a local folder, a hub id or an s3:// address"),
        "Where the model is; without it, the folder of serving.properties.",
        aliases=("option.s3url",),
        example="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    Option(
        "option.revision",
        Text("a branch, tag or commit of the hub"),
        "Which version of a hub model.",
        example="main",
    ),
    Option(
        "option.trust_remote_code",
        Bool(),
        "Asks for code that comes with a model; run by engine=Python alone, and where lmi serve --allow-remote-code"
        " allows it.",
        example="true",
    ),
    Option(
        "option.load_format",
        Choice(
            ("auto", "dummy"),
            synonyms={"safetensors": "auto"},
            refused=dict.fromkeys(_FORMATS_NOT_READ, "weights are read from safetensors files"),
        ),
        "auto reads safetensors files; dummy makes random weights on the device, the same at every start, for measuring"
        " and trying: of the model only config.json is needed, and without a tokenizer a byte-level one is made"
        " (engine=MPI).",
        example="dummy",
    ),
    Option(
        "option.quantize",
        Choice(
            ("none", "int8"),
            refused=dict.fromkeys(
                ("awq", "gptq", "fp8", "int4", "bitsandbytes", "smoothquant", "static_int8"),
                "it is not built yet",
            ),
        ),
        "int8 rounds weights to 8 bits as they are loaded, with a scale for each output feature, and activations with a"
        " scale for each token: on a CPU two to four times as fast as none, with answers that differ (perplexity rises"
        " by some per cent). For CPUs with native kernels.",
        engine="MPI",
        aliases=("option.quantization",),
        example="int8",
    ),
    Option(
        "option.dtype",
        Choice(
            ("auto", "fp32", "fp16", "bf16"),
            synonyms={
                "float32": "fp32",
                "float16": "fp16",
                "bfloat16": "bf16",
                "float": "fp32",
                "half": "fp16",
            },
            refused=dict.fromkeys(("int8", "fp8", "int4"), "option.quantize says how weights are quantised"),
        ),
        "What weights are stored as. On a CPU products are computed in fp32 whatever is stored.",
        example="fp16",
    ),
    Option(
        "option.tensor_parallel_degree",
        Int(1, 1024, words=("max",)),
        "engine=MPI: ranks that share each layer, at most the model's heads. engine=Python: GPUs that layers are"
        " spread over. max is all GPUs (engine=MPI: at most the kv heads), and 1 on a CPU.",
        example="2",
    ),
    Option(
        "option.rolling_batch",
        Choice(
            ("auto", "vllm", "lmi-dist", "scheduler", "trtllm", "disable"),
            refused=dict.fromkeys(("deepspeed", "neuron", "transformers-neuronx"), _OTHER_ROLLING),
        ),
        "disable means dynamic batching; every other value means rolling batching by this server's own engine, under"
        " engine=Python too.",
        engine="MPI",
        example="auto",
    ),
    Option(
        "option.async_mode",
        Bool(),
        "true means rolling batching, under engine=Python too, and beside option.rolling_batch=disable. Answers have"
        " the form of rolling batching.",
        lmi_default="false",
        example="true",
    ),
    *SCHEDULER_OPTIONS,
    Option(
        "option.max_model_len",
        Int(2, 16_777_216),
        "Longest prompt plus output in tokens; without it what the model allows and the KV cache holds.",
        example="4096",
    ),
    Option(
        "option.output_formatter",
        Choice(
            ("json", "jsonlines", "sse"),
            refused={
                **dict.fromkeys(("json_chat", "jsonlines_chat", "sse_chat"), _CHAT_FORMAT),
                **dict.fromkeys(("3p", "3p_stream"), "the Bedrock third-party form is not built"),
                "none": "formatting by a user's own model.py is not built",
            },
        ),
        "Form of the answers on /invocations; without it, by the request.",
        example="jsonlines",
    ),
    Option(
        "option.predict_timeout",
        Float(0, 86_400, unit="seconds", above=True),
        "Seconds that a whole request may take; under engine=Python from the start of its batch.",
        example="120",
    ),
    Option(
        "option.model_loading_timeout",
        Float(0, 86_400, unit="seconds", above=True),
        "Seconds until the engine must be ready.",
        example="600",
    ),
    Option(
        "option.unknown_parameters",
        Choice(("error", "warn")),
        "What an unknown request parameter does: an error, or LMI's way, a log line.",
        example="warn",
    ),
    Option(
        "option.generation_config",
        Choice(("auto", "vllm")),
        "Defaults of sampling parameters on /v1/* and with messages: auto takes temperature, top_p, top_k, min_p and"
        " repetition_penalty from the model's generation_config.json where it has them; vllm leaves that file out.",
        example="vllm",
    ),
    Option(
        "throttle_error_http_code",
        Int(400, 599),
        "Status of a refusal for a full queue on /invocations.",
        example="429",
    ),
    Option(
        "max_request_size",
        Int(1, 1 << 30),
        "Bytes of a request body; more is answered 413.",
        example="6291456",
    ),
)

OPTIONS: tuple[Option, ...] = _SERVED + KNOWN_OPTIONS


def by_name() -> dict[str, Option]:
    """Every option under its name and under each of its aliases."""
    return {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
