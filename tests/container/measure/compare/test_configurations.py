"""Configurations: names, effective values on a machine, and differences."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from container.measure.bench.workload import load_tokenizer
from container.measure.compare.configurations import (
    BadConfiguration,
    NamedPath,
    PreparedModel,
    differing_values,
    names_for,
    preparer,
    read_configurations,
    read_running,
    warnings,
)
from container.measure.compare.selection import tokenizers_for
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.container.explain.questions import make_model
from tests.container.measure.compare.made_up import (
    MACHINE,
    SMALL_SHAPE,
    make_configuration,
    write_model,
    write_properties,
)
from tests.container.measure.conftest import StartScripted


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (
            ("x/paged", "y/paged/serving.properties", "plain", "fast.properties"),
            ("paged-1", "paged-2", "plain", "fast"),
        ),
        (("x/a", "y/a", "a-1"), ("a-2", "a-3", "a-1")),
        (
            ("http://127.0.0.1:8080", "https://models.example/prefix", "http://127.0.0.1:8080"),
            ("127.0.0.1:8080-1", "models.example", "127.0.0.1:8080-2"),
        ),
    ],
    ids=["folders and files", "a number that another folder has", "running servers"],
)
def test_configurations_are_named_after_their_places_with_a_number_if_ambiguous(
    places: tuple[str, ...], names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("x/paged", "y/paged", "plain", "x/a", "y/a", "a-1"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert names_for(places) == names


def test_a_running_server_is_read_from_its_metrics(scripted: StartScripted) -> None:
    labels = 'model="m",engine="MPI",world_size="2",device="cpu",dtype="fp32",paged_attention="true"'
    text = f'# TYPE lmi_engine_info gauge\nlmi_engine_info{{{labels}}} 1\nlmi_x{{engine="other"}} 1\n'
    server = scripted(metrics=text.encode)
    found = read_running("one", server.url)
    assert (found.engine, found.model, found.dtype, found.url) == ("MPI", "m", "fp32", server.url)
    assert found.values["option.tensor_parallel_degree"] == "2"
    assert found.batch_limit is None
    assert found.has_model_of(dataclasses.replace(make_configuration("a"), model="m"))
    assert not found.has_model_of(make_configuration("a"))


def test_differences_compare_effective_values_including_defaults(tmp_path: Path, model: Path) -> None:
    common = ("engine=MPI", f"option.model_id={model}", "option.kv_cache_gb=1")
    one = write_properties(tmp_path / "one", *common)
    two = write_properties(tmp_path / "two", *common, "option.paged_attention=false", "option.dtype=fp32")
    configs = read_configurations(
        [NamedPath("one", one), NamedPath("two", two)],
        {},
        MACHINE,
        lambda source: PreparedModel(model, model),
    )
    # The first configuration's dtype resolves to fp32 on a CPU, so it does not differ.
    assert differing_values(configs) == {
        "option.batch_scheduler_policy": ("max_utilization", "guaranteed_no_evict"),
        "option.paged_attention": ("true", "false"),
        "option.enable_prefix_caching": ("true", "false"),
    }
    assert [config.dtype for config in configs] == ["fp32", "fp32"]
    assert not warnings(configs)


def test_the_error_names_every_configuration_that_cannot_be_served(tmp_path: Path, model: Path) -> None:
    good = write_properties(tmp_path / "good", "engine=MPI", f"option.model_id={model}")
    typo = write_properties(tmp_path / "typo", "engine=MPI", "option.tensor_paralel_degree=1")
    wide = write_properties(tmp_path / "wide", f"option.model_id={model}", "option.tensor_parallel_degree=5")
    gone = write_properties(tmp_path / "gone", "option.model_id=nobody/nothing")

    def prepare(source: ModelSource) -> PreparedModel:
        if source.model_id == "nobody/nothing":
            raise ModelNotAvailable("there is no such model")
        return PreparedModel(model, model)

    named = [NamedPath(path.name, path) for path in (good, typo, wide, gone)]
    with pytest.raises(BadConfiguration) as caught:
        read_configurations(named, {}, MACHINE, prepare)
    text = str(caught.value)
    assert "typo: " in text
    assert "tensor_parallel_degree" in text
    assert "wide: option.tensor_parallel_degree=5" in text
    assert "gone: there is no such model" in text
    assert "good" not in text


def test_the_error_names_a_missing_folder_once(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(BadConfiguration) as caught:
        read_configurations([NamedPath(str(gone), gone)], {}, MACHINE, lambda _: PreparedModel(gone, gone))
    assert str(caught.value).startswith(f"{gone}: no such file or folder")


def test_a_model_without_tokenizer_json_gets_the_tokenizer_of_its_server(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", SMALL_SHAPE, vocab_size=400)
    named = [
        NamedPath(
            name, write_properties(tmp_path / name, f"option.model_id={model}", "option.load_format=dummy")
        )
        for name in ("one", "two")
    ]
    environ = {"LMI_CACHE_DIR": str(tmp_path / "cache")}
    configs = read_configurations(named, environ, MACHINE, preparer(environ, LogLines(io.StringIO())))
    one, two = tokenizers_for(configs, None).values()
    assert one == two
    assert one.is_relative_to(tmp_path / "cache")
    load_tokenizer(one)


def test_a_handler_without_a_model_cannot_be_compared(tmp_path: Path) -> None:
    (write_properties(tmp_path, "engine=Python") / "model.py").write_text("def handle(inputs): ...")
    with pytest.raises(BadConfiguration, match="own: a handler without a model cannot be compared"):
        read_configurations([NamedPath("own", tmp_path)], {}, MACHINE, preparer({}, LogLines(io.StringIO())))


def test_different_models_and_dtypes_give_warnings() -> None:
    configs = [make_configuration("a", dtype="fp32"), make_configuration("b", model="other", dtype="bf16")]
    models, dtypes = warnings(configs)
    assert "different models" in models
    assert "a: model, b: other" in models
    assert "a: fp32, b: bf16" in dtypes


def test_a_key_of_one_engine_is_empty_for_the_other_engine() -> None:
    configs = [
        make_configuration("a", paged_attention="true"),
        make_configuration("b", engine="Python", batch_size="4"),
    ]
    assert differing_values(configs) == {
        "engine": ("MPI", "Python"),
        "option.paged_attention": ("true", ""),
        "option.batch_size": ("", "4"),
    }
