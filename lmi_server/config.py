"""The configuration from serving.properties and the environment, as frozen dataclasses for separate components.

`LmiConfig` holds the user's settings, in which 'auto' and unset values are not resolved yet.
`container/explain/resolve` resolves them and builds an `engines.config.EngineConfig` and a `WebConfig`. All option
defaults are defined here.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from engines.config import JsonConfig

MODEL_MOUNT = Path("/opt/ml/model")
"""Place of the served folder in a container."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Options of the web process."""

    max_request_size: int = 64 * 1024 * 1024
    """Maximum size of a request body in bytes. Larger bodies are rejected with 413."""
    throttle_error_http_code: int = 503
    """HTTP status on `/invocations` when the queue is full. `/v1/*` always returns 429."""
    output_formatter: str | None = None
    """`json`, `jsonlines` or `sse`; None: the request selects the format."""
    predict_timeout: float = 240.0
    """Time limit of a whole request in seconds. Under engine=Python the time counts from the start of the batch."""
    unknown_parameters: str = "error"
    """`error` rejects requests with unknown parameters; `warn` logs and ignores the parameters, as LMI does."""
    generation_config: str = "auto"
    """Source of default sampling parameters on `/v1/*` and for `messages`. `auto`: the model's generation_config.json,
    else the API's defaults. `vllm`: always the API's defaults."""

    @property
    def refuses_unknown(self) -> bool:
        """Whether `/invocations` rejects unknown parameters."""
        return self.unknown_parameters != "warn"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Location of the model."""

    model_id: str | None = None
    """`option.model_id`: a local folder or GGUF file, a Hub id or an S3 URI (s3://...). Defaults to `model_dir`."""
    model_dir: str = "."
    """Folder of serving.properties."""
    revision: str | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    """`auto`: safetensors files. `dummy`: random weights; only config.json is needed. `stream`: each rank reads its
    weights from S3. `dummy` and `stream` require engine=MPI."""
    fetch_all_files: bool = False
    """Whether to fetch files of every kind from all folders of the model. A user's handler may read any of them."""

    @property
    def local_path(self) -> Path:
        """`model_id` as a path on this machine. Relative paths are resolved against `model_dir`.

        `/opt/ml/model` stands for `model_dir` if this machine has no such folder.
        """
        path = Path(self.model_id or ".")
        with contextlib.suppress(RuntimeError):  # `~user` of an unknown user
            path = path.expanduser()
        if path.is_relative_to(MODEL_MOUNT) and not MODEL_MOUNT.exists():
            path = path.relative_to(MODEL_MOUNT)
        return (Path(self.model_dir) / path).resolve()


def holds_model(folder: Path) -> bool:
    """Return whether a folder is a model's: it has a config.json or a GGUF file."""
    return (folder / "config.json").is_file() or any(folder.glob("*.gguf"))


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the engine. `container/explain/resolve` resolves None and 'auto'."""

    dtype: str = "auto"
    """`auto`, `fp32`, `fp16` or `bf16`."""
    model_impl: str = "auto"
    """`auto`, `lmi` or `transformers`."""
    quantize: str = "none"
    """`none` or `int8`."""
    kv_cache_dtype: str = "auto"
    """`auto`, `fp32`, `bf16`, `fp16` or `int8`."""
    tensor_parallel_degree: int | str = "max"
    """Number of tensor-parallel ranks, or `max`: all GPUs, 1 on a CPU."""
    data_parallel_size: int | None = None
    """Number of model copies. None: as many as fit on the GPUs, between `min_workers` and `max_workers`."""
    min_workers: int = 1
    """`minWorkers`: minimum number of model copies."""
    max_workers: int | None = None
    """`maxWorkers`: maximum number of model copies."""
    rolling_batch: str = "auto"
    """`disable` selects dynamic batching. Every other value selects rolling (continuous) batching."""
    max_rolling_batch_size: int = 32
    max_rolling_batch_prefill_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    """Maximum number of tokens in a step, prefill and decode together. If only one of this limit and
    `max_rolling_batch_prefill_tokens` is set, it applies to both."""
    batch_scheduler_policy: str | None = None
    scheduling_policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    waiting_steps: int = 0
    max_queued_tokens: int | None = None
    step_trace: str | None = None
    batch_invariant: bool = False
    enforce_eager: bool = False
    paged_attention: bool = True
    enable_prefix_caching: bool | None = None
    block_size: int = 16
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_gb: float | None = None
    job_queue_size: int = 1000
    batch_size: int = 1
    """Maximum number of requests in a batch of engine=Python."""
    max_batch_delay: int = 100
    """Maximum time in milliseconds that engine=Python waits for a batch to fill."""
    model_loading_timeout: float = 1200.0
    """Seconds within which the engine must become ready."""


@dataclass(frozen=True, slots=True)
class UserHandler:
    """User code that answers requests in place of a model's engine."""

    file: str
    """Python file in the folder of serving.properties."""
    function: str
    """Function to call. If the file does not define it, the file's decorated or toolkit functions are used."""
    options: dict[str, str]
    """All options from the file and the environment, without the prefix `option.`. The handler receives them."""
    requirements: str
    """Path of a requirements.txt to install for the handler, or an empty string."""
    min_workers: int = 1
    max_workers: int = 1
    max_idle_seconds: int = 60
    module: str = ""
    """Dotted name by which option.entryPoint imports the file, such as `package.model`; empty for a file's name."""


@dataclass(frozen=True, slots=True)
class LmiConfig:
    """The complete configuration as the user wrote it."""

    engine: str = "MPI"
    """`MPI` or `Python`."""
    source: ModelSource = field(default_factory=ModelSource)
    options: EngineOptions = field(default_factory=EngineOptions)
    server: ServerConfig = field(default_factory=ServerConfig)
    handler: UserHandler | None = None
    """User code that answers requests in place of the engine's text generation. Requires engine=Python."""
    formatter: UserHandler | None = None
    """User code that rewrites request bodies and answers of text generation. Its `function` is empty."""
    formatter_roles: tuple[str, ...] = ()
    """`input_formatter`, `output_formatter` or both."""


@dataclass(frozen=True, slots=True)
class WebConfig(JsonConfig):
    """Configuration of a web process, passed to it as a JSON file."""

    server: ServerConfig
    engine: str
    """Key of `engines.capabilities.CAPABILITIES`."""
    model_path: str
    """Local folder with tokenizer.json, config.json, generation_config.json and the chat template."""
    max_model_len: int
    """Maximum length of prompt and output together, in tokens."""
    engines: tuple[tuple[str, str], ...]
    """ZeroMQ address and `StatusBoard` path of the engine of each model copy."""
    prefix_caching: bool = False
    """Whether prefix caching is enabled in the engines."""
    places_per_copy: int = 1
    """Requests of this web process that a model copy can run at the same time."""
    tokenizer_path: str = ""
    """Folder of tokenizer.json, if it is not `model_path`."""
    hub_id: str = ""
    """`option.model_id`, if the model is on a hub."""
    formatter_address: str = ""
    """ZeroMQ address of the process that runs the user's formatters. Empty if there are none."""
    formatter_status: str = ""
    """`StatusBoard` path of the formatter process."""
    formatter_roles: tuple[str, ...] = ()
    """`input_formatter`, `output_formatter` or both."""
    admin_token_digest: str = ""
    """Digest of the token that `/admin` requires. If it is empty, the `/admin` routes do not exist."""
    settings_lock: str = ""
    """Path of the lock file that is held while the settings of several model copies change."""
