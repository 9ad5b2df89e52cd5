"""The options table: keys of models and of the server as a whole that LMI knows and no field here takes."""

from __future__ import annotations

from lmi_server.properties.option import Option, ignored, refused
from lmi_server.values.scalars import Bool, Float, Int, Text

_COUNT = Int(0, 2**31 - 1)
_SIGNED = Int(-(2**31), 2**31 - 1)
_STATUS = Int(100, 599)
_TEXT = Text()
_COPIES = "one copy of the model is served; several copies are not built yet"
_MME = "multi-model endpoints are not built yet"
_JAVA = "for Java engines of DJL Serving"
_TLS = "TLS ends before this server (SageMaker, a load balancer)"
_CORS = "cross-origin headers are not built"
_STATUS_FIXED = "this status is fixed; only throttle_error_http_code can be changed"
_ERROR_RATE = "/ping follows the engine's progress, not a rate of errors"
_ADDRESS = "the address is given by `lmi serve --host --port`, or by SAGEMAKER_BIND_TO_PORT"


def _worker_counts() -> tuple[Option, ...]:
    return tuple(
        refused(f"{prefix}{name}", _COUNT, _COPIES, 1, help=f"{what} number of copies.", lmi_default="1")
        for prefix in ("", "cpu.", "gpu.")
        for name, what in (("minWorkers", "Least"), ("maxWorkers", "Largest"))
    )


_MODEL_LEVEL: tuple[Option, ...] = (
    ignored(
        "max_idle_time",
        _COUNT,
        "no worker above the minimum is ever started",
        help="Idle life of extra workers, s.",
        lmi_default="60",
    ),
    *_worker_counts(),
    refused(
        "load_on_devices",
        _TEXT,
        "choose GPUs with CUDA_VISIBLE_DEVICES",
        "*",
        help="Devices.",
        lmi_default="*",
    ),
    refused("required_memory_mb", _COUNT, _MME, 0, help="Memory that a model asks for.", lmi_default="0"),
    refused(
        "gpu.required_memory_mb", _COUNT, _MME, 0, help="GPU memory that a model asks for.", lmi_default="0"
    ),
    ignored(
        "reserved_memory_mb",
        _COUNT,
        "it only decides about further models",
        help="Memory kept free.",
        lmi_default="500",
    ),
    ignored(
        "gpu.reserved_memory_mb",
        _COUNT,
        "it only decides about further models",
        help="GPU memory kept free.",
        lmi_default="500",
    ),
    refused(
        "retry_threshold",
        _COUNT,
        "an engine that dies ends the server with the cause; it is not restarted yet",
        0,
        help="Crashes tolerated.",
        lmi_default="0",
    ),
    ignored(
        "log_request_metric",
        Bool(),
        "every request has its log line, and /metrics the sums",
        help="Log metrics of each request.",
        lmi_default="false",
    ),
    ignored(
        "metrics_aggregation",
        _COUNT,
        "/metrics has the sums at any moment",
        help="Requests a metrics line.",
        lmi_default="1000",
    ),
    refused("translatorFactory", _TEXT, _JAVA, help="Java translator factory."),
    refused("translator", _TEXT, _JAVA, help="Java translator."),
)

_GLOBAL: tuple[Option, ...] = (
    *(
        refused(
            name,
            _TEXT,
            _ADDRESS,
            "http://0.0.0.0:8080",
            help=f"Address of the {what} API.",
            lmi_default="http://0.0.0.0:8080",
        )
        for name, what in (("inference_address", "inference"), ("management_address", "management"))
    ),
    refused(
        "model_store",
        _TEXT,
        "one model is served; give its folder to `lmi serve`",
        "/opt/ml/model",
        help="Folder of models.",
    ),
    refused(
        "load_models",
        _TEXT,
        "one model is served; give its folder to `lmi serve`",
        "ALL",
        help="Models.",
        lmi_default="ALL",
    ),
    refused(
        "wait_model_loading",
        Bool(),
        "/ping is 200 only when the model is ready",
        True,
        help="Bind late.",
        lmi_default="true",
    ),
    refused(
        "allow_multi_status",
        Bool(),
        "/ping answers 200 or 503",
        False,
        help="207 while loading.",
        lmi_default="false",
    ),
    ignored(
        "chunked_read_timeout",
        Float(0, 1e9, unit="seconds"),
        "option.predict_timeout bounds a whole answer, and with it every gap between chunks",
        help="Longest gap in a stream, s.",
        lmi_default="120",
    ),
    refused("bad_request_http_code", _STATUS, _STATUS_FIXED, 400, help="Status.", lmi_default="400"),
    refused("wlm_error_http_code", _STATUS, _STATUS_FIXED, 503, help="Status.", lmi_default="503"),
    refused("server_error_http_code", _STATUS, _STATUS_FIXED, 500, help="Status.", lmi_default="500"),
    ignored("timeout_http_code", _STATUS, "LMI itself never used it", help="Status.", lmi_default="400"),
    *(
        refused(f"error_rate_{name}", _TEXT, _ERROR_RATE, help="Errors until /ping fails.")
        for name in ("wlm", "server", "model", "any")
    ),
    refused(
        "request_id_header_key",
        _TEXT,
        "the header is x-request-id",
        "x-request-id",
        help="Header of the request id.",
        lmi_default="x-request-id",
    ),
    refused("model_url_pattern", _TEXT, _MME, help="Load a model from a request."),
    *(
        refused(f"cors_allowed_{name}", _TEXT, _CORS, help="Cross-origin requests.")
        for name in ("origin", "methods", "headers")
    ),
    *(
        refused(name, _TEXT, _TLS, help="TLS.", secret=name == "keystore_pass")
        for name in ("keystore", "keystore_pass", "keystore_type", "private_key_file", "certificate_file")
    ),
    ignored(
        "number_of_netty_threads",
        _SIGNED,
        "there is no Netty here",
        help="Front-end threads.",
        lmi_default="0",
    ),
    refused("plugin_folder", _TEXT, _JAVA, help="Folder of plugins."),
)

SERVER_KNOWN: tuple[Option, ...] = _MODEL_LEVEL + _GLOBAL
