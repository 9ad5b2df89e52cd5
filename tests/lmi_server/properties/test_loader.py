"""Loading of configurations from files and environment variables: accepted values and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties import loader
from lmi_server.properties.loader import load
from lmi_server.properties.option import Status
from lmi_server.properties.options import OPTIONS
from lmi_server.properties.problems import PropertiesError
from lmi_server.values.show import as_option
from tests.lmi_server.properties.loading import examine_text, load_text, refusal, single_problem


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("option.dtpye", "option.dtype"),
        ("dtype", "option.dtype"),
        ("minworkers", "minWorkers"),
        ("option.max_batch_delay", "max_batch_delay"),
        ("option.job_queue_sizes", ""),
        ("option.entrypoint", "option.entryPoint"),
        ("option.tensor_paralel_degree", "option.tensor_parallel_degree"),
        ("option.enable_loras", "option.enable_lora"),
        ("option.max_rolling_batch", "option.max_rolling_batch_size"),
        # Unsupported keys are only suggested if the key is nearly the same.
        ("option.max_cpu_lora", "option.max_cpu_loras"),
        ("max_cpu_loras", "option.max_cpu_loras"),
        ("option.max_seq_len", "option.max_model_len"),
        ("option.torch_dtype", "option.dtype"),
        ("option.multi_node", ""),
        ("option.spec_config", ""),
        ("quite.another.thing", ""),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(
    tmp_path: Path, key: str, nearest: str
) -> None:
    problem = single_problem(tmp_path, f"# a comment\n{key}=1\n")
    assert (problem.source.file, problem.line) == (str(tmp_path / "serving.properties"), 2)
    assert (problem.key, problem.value, problem.reason) == (key, "***", "unknown key")
    assert problem.nearest == nearest


def test_only_the_first_of_many_unknown_keys_get_a_suggestion(tmp_path: Path) -> None:
    problems = refusal(tmp_path, "".join(f"option.dtpye{i}=1\n" for i in range(50))).problems
    assert [bool(problem.nearest) for problem in problems] == [True] * 20 + [False] * 30


@pytest.mark.parametrize(
    ("lenient", "environ"),
    [(True, {}), (False, {"LMI_LENIENT": "true"}), (False, {"LMI_LENIENT": " True"})],
)
def test_lenient_mode_only_warns_about_unknown_keys(
    tmp_path: Path, lenient: bool, environ: dict[str, str]
) -> None:
    loaded = load_text(tmp_path, "option.dtpye=fp16\n", environ, lenient=lenient)
    assert loaded.config.options.dtype == "auto"
    [warning] = loaded.warnings
    assert "option.dtpye" in warning
    assert "did you mean option.dtype?" in warning


@pytest.mark.parametrize("value", ["false", "", "1"])
def test_other_values_of_lmi_lenient_are_ignored(tmp_path: Path, value: str) -> None:
    assert single_problem(tmp_path, "option.dtpye=fp16\n", {"LMI_LENIENT": value}).reason == "unknown key"


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("option.dtype=fp17", "auto, fp32, fp16 or bf16"),
        ("option.tensor_parallel_degree=two", "an integer from 1 to 1024 or max"),
        ("option.tensor_parallel_degree=0", "an integer from 1 to 1024 or max"),
        ("option.block_size=33", "a power of two from 1 to 1024"),
        ("option.paged_attention=yes", "true or false"),
        ("option.gpu_memory_utilization=1.5", "above 0, at most 1"),
        ("option.kv_cache_gb=nan", "above 0"),
        ("option.kv_cache_gb=0", "above 0"),
        ("option.predict_timeout=1_0", "a number of seconds"),
        ("job_queue_size=-1", "an integer from 1 to"),
        ("job_queue_size=99999999999999999999", "an integer from 1 to"),
        ("throttle_error_http_code=200", "an integer from 400 to 599"),
        ("option.model_id=", "a local folder"),
        ("option.dtype=int8", "auto, fp32, fp16 or bf16"),
        ("engine=DeepSpeed", "MPI, Python or Rolling"),
        ("engine=mpi", "MPI, Python or Rolling"),
        ("option.output_formatter=json_chat", "json, jsonlines or sse"),
        ("option.rolling_batch=neuron", "auto, vllm, lmi-dist, scheduler, trtllm or disable"),
        ("option.load_format=pt", "auto, dummy or stream (also safetensors, gguf)"),
        ("option.load_format=dumy", "auto, dummy or stream (also safetensors, gguf)"),
    ],
)
def test_an_invalid_value_is_refused_with_line_value_and_accepted_values(
    tmp_path: Path, line: str, accepted: str
) -> None:
    problem = single_problem(tmp_path, f"\n\n{line}\n")
    key, _, value = line.partition("=")
    assert (problem.line, problem.key, problem.value) == (3, key, value)
    assert accepted in problem.accepted
    assert value in str(problem)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a\\u0000b", "contains a control character"),
        ("a\\ud800b", "surrogate"),
        ("models/" + "a" * 256, "contains a name of more than 255 bytes"),
    ],
)
def test_an_impossible_path_is_refused(tmp_path: Path, value: str, reason: str) -> None:
    assert reason in single_problem(tmp_path, f"option.model_id={value}\n").reason


def test_the_home_of_an_unknown_user_is_not_expanded(tmp_path: Path) -> None:
    source = load_text(tmp_path, "option.model_id=~nobody-of-this-name/model\n").config.source
    assert source.local_path == tmp_path.resolve() / "~nobody-of-this-name" / "model"


def test_all_problems_are_reported_in_order(tmp_path: Path) -> None:
    text = (
        "nonsense=1\noption.dtype=x\noption.model_id={{s3_url}}\njob_queue_size=\\u1\noption.quantize=awq\n"
    )
    problems = refusal(tmp_path, text, {"OPTION_NONSENSE": "1"}).problems
    assert [problem.line for problem in problems] == [1, 2, 3, 4, 5, None]
    assert problems[-1].source.variable == "OPTION_NONSENSE"


def test_a_placeholder_is_reported_as_a_single_problem(tmp_path: Path) -> None:
    problem = single_problem(tmp_path, "job_queue_size={{size}}\n")
    assert "{{size}} is a template placeholder" in problem.reason
    assert "{{m}}" in single_problem(tmp_path, "", {"OPTION_MODEL_ID": "{{m}}"}).reason


def test_trailing_blanks_are_removed_from_typed_values_and_kept_in_text(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "job_queue_size=7 \noption.model_id=/a b \n")
    assert loaded.config.options.job_queue_size == 7
    assert loaded.config.source.model_id == "/a b "
    number, text = loaded.warnings
    assert "serving.properties:1" in number
    assert number.endswith("removed")
    assert "serving.properties:2" in text
    assert text.endswith("kept, because they may be intended")


@pytest.mark.parametrize(
    "line",
    [
        "job_queue_size=7 # few",
        "option.device_map=auto  # \u00e4 comment",
        "option.task=text-generation # task",
        "option.entryPoint=model.py  # my handler.py",
    ],
)
def test_an_inline_comment_is_the_reason_of_an_invalid_value(tmp_path: Path, line: str) -> None:
    found = examine_text(tmp_path, f"{line}\n")
    [problem] = found.problems
    assert problem.value == line.partition("=")[2]
    assert problem.reason.startswith("comments must be on separate lines")
    assert (found.warnings, found.notes) == ([], [])


def test_an_inline_comment_in_a_valid_text_is_warned_about(tmp_path: Path) -> None:
    [warning] = load_text(tmp_path, "option.model_id=/model # mine\n").warnings
    assert "comments must be on separate lines" in warning


def test_an_invalid_entry_point_is_not_said_to_be_replaced(tmp_path: Path) -> None:
    found = examine_text(tmp_path, "option.entryPoint=model.py\n")
    assert len(found.problems) == 1
    assert found.notes == []


def test_a_refused_feature_that_is_off_is_not_said_to_be_on(tmp_path: Path) -> None:
    for option in OPTIONS:
        for value in option.neutral if option.status is Status.REFUSED else ():
            [note] = load_text(tmp_path, f"{option.name}={as_option(value)}\n").notes
            assert note.endswith("accepted without effect: this value changes nothing here")


def test_two_names_of_one_option_must_agree(tmp_path: Path) -> None:
    names = ("option.model_id", "option.s3url")
    same = load_text(tmp_path, "".join(f"{name}=s3://bucket/a\n" for name in names))
    assert same.config.source.model_id == "s3://bucket/a"
    problem = single_problem(tmp_path, f"{names[0]}=s3://bucket/a\n{names[1]}=s3://bucket/b\n")
    assert (problem.line, problem.value) == (2, "s3://bucket/b")
    assert names[0] in problem.reason


@pytest.mark.parametrize("name", ["waiting_served_ratio", "max_waiting_tokens", "waiting_steps"])
def test_options_without_effect_under_chunked_prefill_are_noted(tmp_path: Path, name: str) -> None:
    line = f"option.{name}=1\n"
    assert any("no effect unless" in note for note in load_text(tmp_path, line).notes)
    assert not load_text(tmp_path, line + "option.enable_chunked_prefill=false\n").notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "option.tensor_parallel_degree=2\noption.tensor_parallel_size=4\n",
            "the same option with another value",
        ),
        ("maxWorkers=4\ngpu.maxWorkers=1\n", "another value; remove one of the two lines"),
        ("engine=Python\noption.load_format=dummy\n", "use engine=MPI for random weights"),
        (
            "engine=Python\noption.load_format=stream\noption.model_id=s3://a/b\n",
            "engine=Python only loads weights from files; use engine=MPI to stream them",
        ),
        ("option.load_format=stream\n", "weights can only be streamed from S3"),
        ("option.load_format=stream\noption.model_id=owner/name\n", "weights can only be streamed from S3"),
        (
            "option.paged_attention=false\noption.batch_scheduler_policy=max_utilization\n",
            "use guaranteed_no_evict",
        ),
        (
            "option.paged_attention=false\noption.enable_prefix_caching=true\n",
            "option.paged_attention=true",
        ),
    ],
)
def test_contradictory_keys_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in single_problem(tmp_path, text).reason


@pytest.mark.parametrize("text", ["", "option.tensor_parallel_degree=2\noption.max_rolling_batch_size=64\n"])
def test_the_names_of_vllm_set_the_same_options(tmp_path: Path, text: str) -> None:
    text += "option.tensor_parallel_size=2\noption.max_num_seqs=64\n"
    options = load_text(tmp_path, text).config.options
    assert (options.tensor_parallel_degree, options.max_rolling_batch_size) == (2, 64)


def test_the_names_of_tensorrt_llm_set_the_same_options(tmp_path: Path) -> None:
    text = "option.max_num_tokens=4096\noption.max_num_sequences=64\noption.tokens_per_block=32\n"
    options = load_text(tmp_path, text + "option.enable_kv_cache_reuse=false\n").config.options
    assert (options.max_num_batched_tokens, options.max_rolling_batch_size) == (4096, 64)
    assert (options.block_size, options.enable_prefix_caching) == (32, False)


def test_the_names_of_djl_for_a_device_limit_the_copies(tmp_path: Path) -> None:
    options = load_text(tmp_path, "gpu.minWorkers=2\ngpu.maxWorkers=3\n").config.options
    assert (options.min_workers, options.max_workers) == (2, 3)


def test_djls_example_of_retry_threshold_is_accepted_with_a_note(tmp_path: Path) -> None:
    [note] = load_text(tmp_path, "retry_threshold=10\n").notes
    assert note.endswith("the server decides how often it restarts a process that crashes")


@pytest.mark.parametrize("value", ["true", "huggingface"])
@pytest.mark.parametrize("engine", ["MPI", "Python\nbatch_size=1"])
def test_streaming_for_all_requests_is_noted_under_both_engines(
    tmp_path: Path, engine: str, value: str
) -> None:
    [note] = load_text(tmp_path, f"engine={engine}\noption.enable_streaming={value}\n").notes
    assert note.endswith('without effect: each request decides whether to stream ("stream": true)')


def test_a_key_without_prefix_is_noted_like_its_variable(tmp_path: Path) -> None:
    notes = [
        load_text(tmp_path, "fail_fast=true\n").notes,
        load_text(tmp_path, "", {"SERVING_FAIL_FAST": "true"}).notes,
    ]
    assert all("the server always exits if the model fails" in note for [note] in notes)


def test_values_report_their_source(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "\noption.dtype=float16\n", {"OPTION_BLOCK_SIZE": "16"})
    found = {value.key: (value.value, value.source) for value in loaded.values}
    assert found["option.dtype"] == ("fp16", f"{tmp_path / 'serving.properties'}:2")
    assert found["option.block_size"] == ("16", "environment variable OPTION_BLOCK_SIZE")
    assert found["job_queue_size"] == ("1000", "default")


def test_the_path_may_be_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.properties"
    file.write_text("job_queue_size=3\n")
    loaded = load(file, {})
    assert loaded.config.options.job_queue_size == 3
    assert loaded.config.source.model_dir == str(tmp_path)


def test_a_folder_without_properties_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"neither a serving\.properties nor a model"):
        load(tmp_path, {})
    assert load(tmp_path, {"HF_MODEL_ID": "a/b"}).config.source.model_id == "a/b"
    (tmp_path / "config.json").write_text("{}")
    assert load(tmp_path, {}).config.source.model_id is None
    assert "is not served" in load(tmp_path, {"HF_MODEL_ID": "a/b"}).warnings[0]
    assert load(tmp_path, {"HF_MODEL_ID": str(tmp_path)}).warnings == ()


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").touch()
    assert load(tmp_path, {}).config.source.local_path == tmp_path


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"no such file or folder; pass a .*, or a model's folder$"):
        load(tmp_path / "nowhere", {})


def test_a_missing_mount_is_an_empty_folder_if_the_environment_names_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "ml" / "model"
    monkeypatch.setattr(loader, "MODEL_MOUNT", mount)
    environ = {"HF_MODEL_ID": "a/b"}
    loaded = load(mount, environ)
    assert (loaded.config.source.model_id, loaded.config.source.model_dir) == ("a/b", str(mount))
    with pytest.raises(PropertiesError, match=r"ml/model: no such file or folder; pass a "):
        load(mount, {})
    with pytest.raises(PropertiesError, match="no such file or folder"):
        load(tmp_path / "mistyped", environ)


def test_a_hub_id_as_path_is_refused_with_the_command_that_serves_it() -> None:
    with pytest.raises(PropertiesError, match=r"HF_MODEL_ID=Qwen/Qwen2\.5-0\.5B lmi serve$"):
        load(Path("Qwen/Qwen2.5-0.5B"), {})


@pytest.mark.parametrize(
    "key",
    ["keystore_pass", "option.env=KEY", "hf_token", "option.hf_token", "option.hf_tokn", "option.hftoken"],
)
def test_possible_secrets_are_not_printed(tmp_path: Path, key: str) -> None:
    found = examine_text(tmp_path, f'{key}="hunter2"\n{key}=hunter2\n')  # quotes and duplicates give warnings
    for text in ("\n".join(map(str, found.problems)), "\n".join(found.warnings)):
        assert "hunter2" not in text
        assert "***" in text


def test_the_value_of_an_unknown_key_is_not_printed(tmp_path: Path) -> None:
    variables = {"OPTION_HFTOKEN": "hunter2"}
    for text in (
        str(refusal(tmp_path, "", variables)),
        *load_text(tmp_path, "option.hf_tokn=hunter2\n", variables, lenient=True).warnings,
    ):
        assert "hunter2" not in text
        assert "unknown key" in text


def test_load_formats_safetensors_and_gguf_mean_auto(tmp_path: Path) -> None:
    for value, expected in (("dummy", "dummy"), ("safetensors", "auto"), ("gguf", "auto"), ("auto", "auto")):
        loaded = load_text(tmp_path, f"option.load_format={value}\n")
        assert loaded.config.source.load_format == expected
        assert loaded.notes == ()
    assert load_text(tmp_path, "engine=Python\noption.load_format=auto\n").config.source.load_format == "auto"


@pytest.mark.parametrize(
    ("lines", "key", "reason"),
    [
        ("minWorkers=3\nmaxWorkers=2", "maxWorkers", "less than minWorkers=3"),
        ("minWorkers=3\noption.data_parallel_size=2", "option.data_parallel_size", "less than minWorkers=3"),
        ("option.data_parallel_size=3\nmaxWorkers=2", "maxWorkers", "less than option.data_parallel_size=3"),
    ],
)
def test_contradictory_numbers_of_copies_are_refused(
    tmp_path: Path, lines: str, key: str, reason: str
) -> None:
    problem = single_problem(tmp_path, f"option.model_id=m\n{lines}\n")
    assert problem.key == key
    assert reason in problem.reason
    assert problem.accepted == "at least 3"


def test_consistent_numbers_of_copies_are_accepted(tmp_path: Path) -> None:
    text = "minWorkers=1\noption.data_parallel_size=2\nmaxWorkers=2\n"
    assert load_text(tmp_path, text).config.options.data_parallel_size == 2


@pytest.mark.parametrize("model_id", ["s3://bucket/model.tar.gz", "owner/model.zip", "/opt/model.tar"])
def test_an_archive_of_a_model_is_refused(tmp_path: Path, model_id: str) -> None:
    problem = single_problem(tmp_path, f"option.model_id={model_id}\n")
    assert (problem.line, problem.reason) == (1, "archives are not supported; unpack it and name the folder")


def test_a_folder_may_be_named_like_an_archive_and_a_handler_may_unpack_one(tmp_path: Path) -> None:
    (tmp_path / "model.tar").mkdir()
    load_text(tmp_path, "option.model_id=model.tar\n")
    (tmp_path / "model.py").write_text("def handle(inputs): ...\n")
    load_text(tmp_path, "option.model_id=/opt/model.tar.gz\n")
    single_problem(tmp_path, "option.model_id=s3://bucket/model.tar.gz\n")
