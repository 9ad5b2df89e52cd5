"""Options from environment variables, and the precedence of sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_server.config import LmiConfig, ModelSource
from lmi_server.properties.environment import ENV_NAMES, variables_of
from lmi_server.properties.loader import load
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import PropertiesError
from lmi_server.values.base import BadValueError
from tests.lmi_server.properties.loading import examine_text, load_text, refusal, single_problem

# Sources of each option, highest precedence first. "" stands for the file.
SOURCES = {
    "option.predict_timeout": (
        *("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "", "OPTION_PREDICT_TIMEOUT", "PREDICT_TIMEOUT"),
    ),
    "option.model_loading_timeout": (
        *("SAGEMAKER_STARTUP_TIMEOUT", "", "OPTION_MODEL_LOADING_TIMEOUT", "MODEL_LOADING_TIMEOUT"),
    ),
    "option.tensor_parallel_degree": (
        *("", "OPTION_TENSOR_PARALLEL_DEGREE", "TENSOR_PARALLEL_DEGREE", "SM_NUM_GPUS"),
    ),
    "option.max_rolling_batch_size": ("", "OPTION_MAX_ROLLING_BATCH_SIZE", "MAX_BATCH_SIZE"),
    "max_request_size": ("SAGEMAKER_MAX_REQUEST_SIZE", "", "SERVING_MAX_REQUEST_SIZE"),
    "job_queue_size": ("", "SERVING_JOB_QUEUE_SIZE", "MAX_CONCURRENT_REQUESTS"),
}


@st.composite
def values_by_source(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    key = draw(st.sampled_from(sorted(SOURCES)))
    sources = draw(st.sets(st.sampled_from(SOURCES[key]), min_size=1))
    return key, {source: draw(st.integers(1, 900)) for source in sources}


@given(values_by_source())
def test_the_source_with_the_highest_precedence_wins(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[str, dict[str, int]]
) -> None:
    key, numbers = case
    folder = tmp_path_factory.mktemp("sources")
    text = f"{key}={numbers['']}\n" if "" in numbers else "engine=MPI\n"
    loaded = load_text(folder, text, {source: str(number) for source, number in numbers.items() if source})
    winner = next(source for source in SOURCES[key] if source in numbers)
    value = next(value for value in loaded.values if value.key == key)
    assert value.value == str(numbers[winner])
    assert value.source == (f"environment variable {winner}" if winner else f"{folder}/serving.properties:1")
    overridden = {source for source in numbers if source and numbers[source] != numbers[winner]}
    assert all(any(source in note for note in loaded.notes) for source in overridden)


def test_option_variables_map_to_option_names(tmp_path: Path) -> None:
    environ = {"OPTION_MODEL_ID": "a/b", "OPTION_DTYPE": "bf16", "OPTION_ENGINE": "Python"}
    config = load_text(tmp_path, "", environ).config
    assert (config.engine, config.source.model_id, config.options.dtype) == ("Python", "a/b", "bf16")
    [note] = load_text(tmp_path, "engine=MPI\n", {"OPTION_ENTRYPOINT": "djl_python.huggingface"}).notes
    assert "option.entryPoint=djl_python.huggingface" in note


def test_hugging_face_and_tgi_variables_are_supported(tmp_path: Path) -> None:
    environ = {"HF_MODEL_ID": "a/b", "HF_REVISION": "v1", "HF_MODEL_TRUST_REMOTE_CODE": "true"}
    environ |= {"MAX_BATCH_PREFILL_TOKENS": "77", "CUDA_MEMORY_FRACTION": "0.5", "ENABLE_CUDA_GRAPHS": "true"}
    config = load_text(tmp_path, "", environ).config
    source = config.source
    assert (source.model_id, source.revision, source.trust_remote_code) == ("a/b", "v1", True)
    assert config.options.max_rolling_batch_prefill_tokens == 77
    assert config.options.gpu_memory_utilization == 0.5


def test_sagemaker_max_request_size_overrides_the_payload_limit_in_megabytes(tmp_path: Path) -> None:
    environ = {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6"}
    assert load_text(tmp_path, "", environ).config.server.max_request_size == 6 * 1024 * 1024
    environ["SAGEMAKER_MAX_REQUEST_SIZE"] = "1000"
    assert load_text(tmp_path, "", environ).config.server.max_request_size == 1000


def test_empty_variables_count_as_unset(tmp_path: Path) -> None:
    environ = {"OPTION_DTYPE": "", "OPTION_NONSENSE": " ", "SM_NUM_GPUS": "0", "HF_MODEL_ID": ""}
    assert load_text(tmp_path, "", environ).config == load_text(tmp_path, "", {}).config


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("OPTION_DTPYE", "OPTION_DTYPE"),
        ("SERVING_JOB_QEUE_SIZE", "SERVING_JOB_QUEUE_SIZE"),
        ("OPTION_JOB_QUEUE_SIZE", "SERVING_JOB_QUEUE_SIZE"),
        ("OPTION_PREDICT_TIMOUT", "OPTION_PREDICT_TIMEOUT"),
        ("OPTION_MODEL_LOADING_TIMOUT", "OPTION_MODEL_LOADING_TIMEOUT"),
        ("SERVING_MAX_REQEST_SIZE", "SERVING_MAX_REQUEST_SIZE"),
        ("SERVING_MIN_WORKER", "SERVING_MIN_WORKERS"),
        ("OPTION_ENTRYPOIN", "OPTION_ENTRYPOINT"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    tmp_path: Path, variable: str, nearest: str
) -> None:
    problem = single_problem(tmp_path, "", {variable: "1"})
    assert problem.source.variable == variable
    assert problem.nearest == nearest
    assert f"environment variable {variable}" in str(problem)


@pytest.mark.parametrize("variable", ["OPTION_BLOCK_SIZE", "PREDICT_TIMEOUT", "SAGEMAKER_MAX_PAYLOAD_IN_MB"])
def test_an_invalid_value_is_reported_with_its_variable(tmp_path: Path, variable: str) -> None:
    problem = single_problem(tmp_path, "", {variable: "many"})
    assert (problem.source.variable, problem.value) == (variable, "many")


def test_a_number_of_very_many_digits_is_refused(tmp_path: Path) -> None:
    """Python refuses to convert more than 4300 digits."""
    problem = single_problem(tmp_path, "", {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "9" * 5000})
    assert problem.accepted == "an integer from 1 to 1024 (MiB)"


def test_a_converted_value_is_reported_as_it_was_written(tmp_path: Path) -> None:
    problem = single_problem(tmp_path, "", {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "2048"})
    assert str(problem) == (
        "environment variable SAGEMAKER_MAX_PAYLOAD_IN_MB: value '2048': is out of range; accepted: an integer from 1"
        " to 1024 (MiB)"
    )
    [note] = load_text(tmp_path, "option.enforce_eager=true\n", {"ENABLE_CUDA_GRAPHS": "true"}).notes
    assert "ENABLE_CUDA_GRAPHS: true is not used" in note


def test_the_accepted_megabytes_are_those_of_the_option() -> None:
    [name] = [name for name in ENV_NAMES if name.variable == "SAGEMAKER_MAX_PAYLOAD_IN_MB"]
    type_ = by_name()[name.key].type
    assert type_.from_text(name.convert("1024"))
    with pytest.raises(BadValueError):
        type_.from_text(name.convert("1025"))
    assert "from 1 to 1024" in name.accepted


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("9223372036854775807", None),
        ("-9223372036854775808", None),
        ("9223372036854775808", "is out of range"),
        ("1" * 20, "is out of range"),
        ("9" * 5000, "is out of range"),
    ],
    ids=["largest", "smallest", "above", "20 digits", "5000 digits"],
)
def test_integers_of_64_bits_are_accepted(number: str, reason: str | None, tmp_path: Path) -> None:
    found = examine_text(tmp_path, f"option.seed={number}\n")
    assert [problem.reason for problem in found.problems] == ([reason] if reason else [])


def test_an_invalid_line_is_refused_even_if_sagemaker_overrides_it(tmp_path: Path) -> None:
    environ = {"SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "60"}
    error = refusal(tmp_path, "option.predict_timeout=soon\n", environ)
    assert "serving.properties:1: option.predict_timeout=soon" in str(error)


class TestLoadModels:
    @pytest.mark.parametrize("url", ["/some/model", "file:/some/model", "file:///some/model"])
    def test_sets_engine_and_model_id(self, tmp_path: Path, url: str) -> None:
        config = load(tmp_path, {"SERVING_LOAD_MODELS": f"test::Python={url}"}).config
        assert (config.engine, config.source.model_id) == ("Python", "/some/model")

    def test_the_served_folder_needs_no_model_id(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        config = load(tmp_path, {"SERVING_LOAD_MODELS": f"test::MPI={tmp_path}"}).config
        assert (config.engine, config.source.model_id) == ("MPI", None)

    def test_the_file_takes_precedence(self, tmp_path: Path) -> None:
        text = "engine=MPI\noption.model_id=/y\n"
        loaded = load_text(tmp_path, text, {"SERVING_LOAD_MODELS": "test::Python=/x"})
        assert (loaded.config.engine, loaded.config.source.model_id) == ("MPI", "/y")

    def test_a_folder_with_its_own_file_is_served(self, tmp_path: Path) -> None:
        served, named = tmp_path / "served", tmp_path / "named"
        served.mkdir()
        named.mkdir()
        (named / "config.json").write_text("{}")
        (named / "serving.properties").write_text("option.max_model_len=77\n")
        environ = {"SERVING_LOAD_MODELS": f"test::MPI={named}"}
        config = load(served, environ).config
        assert (config.options.max_model_len, config.source.model_dir) == (77, str(named))
        loaded = load_text(served, "option.dtype=fp32\n", environ)
        assert (loaded.config.options.max_model_len, loaded.config.source.model_id) == (None, str(named))
        assert any(f"{named / 'serving.properties'} is not read" in text for text in loaded.warnings)

    @pytest.mark.parametrize("file", ["config.json", "model.gguf"])
    def test_a_model_in_the_folder_is_served_with_a_note(self, tmp_path: Path, file: str) -> None:
        (tmp_path / file).write_text("{}")
        loaded = load(tmp_path, {"SERVING_LOAD_MODELS": "test::MPI=/x"})
        assert loaded.config.source.model_id is None
        assert f"/x is not served, because {tmp_path} contains a model" in "".join(loaded.notes)

    def test_devices_are_refused(self, tmp_path: Path) -> None:
        load(tmp_path, {"SERVING_LOAD_MODELS": "test::MPI:*=/x"})
        problem = single_problem(tmp_path, "", {"SERVING_LOAD_MODELS": "test::MPI:0;1=/x"})
        assert (problem.key, problem.value) == ("load_on_devices", "0;1")

    @pytest.mark.parametrize("text", ["NONE", "a::MPI=/x,b::MPI=/y"])
    def test_anything_but_one_model_is_refused(self, tmp_path: Path, text: str) -> None:
        reason = single_problem(tmp_path, "", {"SERVING_LOAD_MODELS": text}).reason
        assert "name exactly one, or serve a folder that holds only model folders" in reason


def test_the_revision_belongs_to_the_model_of_its_variable(tmp_path: Path) -> None:
    environ = {"HF_MODEL_ID": "org/b", "HF_REVISION": "v2"}
    assert load(tmp_path, environ).config.source.revision == "v2"
    loaded = load_text(tmp_path, "option.model_id=org/a\n", environ)
    assert (loaded.config.source.model_id, loaded.config.source.revision) == ("org/a", None)
    assert any("HF_REVISION: not used, because" in note for note in loaded.notes)
    for same in ({"HF_REVISION": "v2"}, {"HF_REVISION": "v2", "HF_MODEL_ID": "org/a"}):
        assert load_text(tmp_path, "option.model_id=org/a\n", same).config.source.revision == "v2"


def test_variables_of_other_programs_are_ignored(tmp_path: Path) -> None:
    kubernetes = {
        "SERVING_SERVICE_HOST": "10.0.0.1",
        "SERVING_SERVICE_PORT_HTTP": "80",
        "SERVING_PORT": "tcp://10.0.0.1:80",
        "SERVING_PORT_80_TCP": "tcp://10.0.0.1:80",
        "SERVING_LLAMA_7B_SERVICE_HOST": "10.0.0.2",
        "SERVING_LLAMA_7B_SERVICE_PORT_HTTP": "80",
        "SERVING_LLAMA_7B_PORT": "tcp://10.0.0.2:80",
        "SERVING_LLAMA_7B_PORT_80_TCP_PROTO": "tcp",
    }
    environ = {**kubernetes, "SAGEMAKER_REGION": "x", "PATH": "/bin", "OPTIONS": "x", "HF_TOKEN": "hf_secret"}
    loaded = load_text(tmp_path, "", environ)
    assert (loaded.notes, loaded.warnings) == ((), ())


def test_djl_variables_are_known(tmp_path: Path) -> None:
    environ = {"HF_MODEL_ID": "some/model", "SERVING_OPTS": "-Xmx1g"}
    [note] = load(tmp_path, environ).notes
    assert "SERVING_OPTS: not used" in note
    names = ("SERVING_DDB_CACHE", "SERVING_MEMORY_CACHE_CAPACITY", "SERVING_S3_CACHE_BUCKET")
    stored = {"HF_MODEL_ID": "some/model", **dict.fromkeys(names, "16")}
    for name, note in zip(names, load(tmp_path, stored).notes, strict=True):
        assert f"{name}: not used; responses are not stored" in note
    with pytest.raises(PropertiesError, match=r"DJL_ENTRY_POINT.*there is no file model.py"):
        load(tmp_path, {**environ, "DJL_ENTRY_POINT": "model.py"})
    assert load(tmp_path, {**environ, "DJL_ENTRY_POINT": "djl_python.huggingface"}).config == LmiConfig(
        source=ModelSource(model_id="some/model", model_dir=str(tmp_path))
    )


def test_serving_port_is_refused_with_its_replacement(tmp_path: Path) -> None:
    assert "SAGEMAKER_BIND_TO_PORT" in single_problem(tmp_path, "", {"SERVING_PORT": "9000"}).reason


def test_variables_of_a_key_are_listed_by_precedence() -> None:
    assert variables_of("option.predict_timeout") == (
        *("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "OPTION_PREDICT_TIMEOUT", "PREDICT_TIMEOUT"),
    )
    assert variables_of("minWorkers") == ("SAGEMAKER_NUM_MODEL_WORKERS", "SERVING_MIN_WORKERS")
