"""The options table: `option.*` keys of LMI's handlers and workers that no field here takes."""

from __future__ import annotations

from lmi_server.properties.option import Option, ignored, refused
from lmi_server.values.scalars import Bool, Choice, Int, Text

_COUNT = Int(0, 2**31 - 1)
_TEXT = Text()
_HANDLER = "a user's own handler (model.py) is not built yet"
_QUANT = "quantised weights are not built yet"

HANDLER_KNOWN: tuple[Option, ...] = (
    refused(
        "option.entryPoint",
        _TEXT,
        _HANDLER,
        help="Handler module.",
        neutral_prefix="djl_python.",
        lmi_default="djl_python.huggingface",
    ),
    refused("option.handler", _TEXT, _HANDLER, "handle", help="Handler function.", lmi_default="handle"),
    refused(
        "option.model_dir", _TEXT, "an old name; write option.model_id", help="Old name of option.model_id."
    ),
    refused(
        "option.pipeline_parallel_degree",
        Int(1, 1024),
        "layers are not spread over stages yet; use option.tensor_parallel_degree",
        1,
        help="Pipeline stages.",
        lmi_default="1",
    ),
    refused(
        "option.pipeline_parallel_size",
        Int(1, 1024),
        "layers are not spread over stages yet; use option.tensor_parallel_degree",
        1,
        help="The backend's name of option.pipeline_parallel_degree.",
    ),
    ignored(
        "option.tensor_parallel_size",
        Int(1, 1024),
        "it equals option.tensor_parallel_degree",
        help="The backend's name of option.tensor_parallel_degree; must be equal to it.",
    ),
    ignored(
        "option.max_num_seqs",
        Int(1, 4096),
        "it equals option.max_rolling_batch_size",
        help="The backend's name of option.max_rolling_batch_size; must be equal to it.",
    ),
    ignored(
        "option.mpi_mode",
        Bool(),
        "ranks run under MPI with rolling batching (engine=MPI), and only then",
        help="One process a rank under mpirun.",
        lmi_default="true with engine=MPI",
    ),
    ignored(
        "option.parallel_loading",
        Bool(),
        "there is one copy to load",
        help="Start copies together.",
        lmi_default="false",
    ),
    refused(
        "option.pythonExecutable",
        _TEXT,
        "the engine runs in the server's own Python",
        "python3",
        "python",
        help="Python of the workers.",
        lmi_default="python3",
    ),
    refused(
        "option.enable_venv", Bool(), _HANDLER, False, help="Own environment a model.", lmi_default="false"
    ),
    refused(
        "option.env", _TEXT, "set the variables where the server is started", help="Variables.", secret=True
    ),
    refused(
        "option.enable_streaming",
        Choice(("false", "true", "huggingface")),
        'a request asks for a stream itself: "stream": true',
        "false",
        help="Streaming of the old handler.",
        lmi_default="false",
    ),
    refused(
        "option.tgi_compat",
        Bool(),
        "TGI's replies are not built yet",
        False,
        help="TGI's replies.",
        lmi_default="false",
    ),
    refused(
        "option.bedrock_compat",
        Bool(),
        "Bedrock's replies are not built",
        False,
        help="Bedrock's replies.",
        lmi_default="false",
    ),
    refused(
        "option.task",
        _TEXT,
        "only text generation is served",
        "text-generation",
        "auto",
        "generate",
        help="Task.",
        lmi_default="auto",
    ),
    refused(
        "option.normalize", Bool(), "embeddings are not served", True, help="Embeddings.", lmi_default="true"
    ),
    refused(
        "option.device_map",
        _TEXT,
        "layers are placed by option.tensor_parallel_degree",
        "auto",
        help="Placement by accelerate.",
    ),
    ignored(
        "option.low_cpu_mem_usage",
        Bool(),
        "each rank reads only its own slices of the files",
        help="Load without a second copy.",
    ),
    refused("option.load_in_8bit", Bool(), _QUANT, False, help="bitsandbytes, 8 bits.", lmi_default="false"),
    refused("option.load_in_4bit", Bool(), _QUANT, False, help="bitsandbytes, 4 bits.", lmi_default="false"),
    refused(
        "option.stop_sequence",
        _TEXT,
        "requests give parameters.stop_sequences",
        help="Stop text for all requests.",
    ),
    ignored(
        "option.disable_flash_attn",
        Bool(),
        "it chooses a kernel of another server",
        help="Do without flash attention.",
    ),
    refused(
        "option.enable_stateful_sessions",
        Bool(),
        "sessions are not built yet",
        False,
        help="SageMaker sessions.",
        lmi_default="true",
    ),
    *(
        ignored(
            f"option.{name}",
            _TEXT,
            "it only matters with option.enable_stateful_sessions=true, which is refused",
            help=what,
        )
        for name, what in (
            ("sessions_path", "Folder of sessions."),
            ("sessions_expiration", "Their life, s."),
        )
    ),
)
