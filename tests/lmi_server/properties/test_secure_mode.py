"""SageMaker's secure mode: the server refuses to start when a security control is violated."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties.loader import load
from lmi_server.properties.problems import PropertiesError

PICKLES = "DISALLOW_PICKLE_FILES"
TEMPLATES = "DISALLOW_CHAT_TEMPLATE"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a handler."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.py").write_text("def handle(inputs):\n    return None\n")
    return folder


def environ(controls: str, **others: str) -> dict[str, str]:
    return {"SAGEMAKER_SECURE_MODE": "true", "SAGEMAKER_SECURITY_CONTROLS": controls, **others}


def refusal(folder: Path, environ: dict[str, str]) -> str:
    with pytest.raises(PropertiesError) as caught:
        load(folder, environ)
    return str(caught.value)


def test_each_security_control_is_enforced(folder: Path) -> None:
    (folder / "requirements.txt").write_text("x\n")
    (folder / "weights").mkdir()
    (folder / "weights" / "model.BIN").write_text("x")
    (folder / "chat_template.jinja").write_text("x")
    (folder / "serving.properties").write_text("option.trust_remote_code=true\n")
    for control, name in {
        "DISALLOW_CUSTOM_INFERENCE_SCRIPTS": "model.py",
        "DISALLOW_REQUIREMENTS_TXT": "requirements.txt",
        PICKLES: "weights/model.BIN",
        TEMPLATES: "chat_template.jinja",
        "DISALLOW_TRUST_REMOTE_CODE": "serving.properties:1",
    }.items():
        assert (
            refusal(folder, environ(control))
            == f"{folder / name}: forbidden by the security control {control} (SAGEMAKER_SECURITY_CONTROLS)"
        )
    assert len(refusal(folder, environ(f"DISALLOW_REQUIREMENTS_TXT, {PICKLES}")).splitlines()) == 2
    assert "unknown security control" in refusal(folder, environ("DISALLOW_EVERYTHING"))
    assert load(folder, {"SAGEMAKER_SECURITY_CONTROLS": PICKLES}), "secure mode is off"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("additional_chat_templates/tools.jinja", "x"),
        ("chat_template.json", "{}"),
        ("tokenizer_config.json", '{"chat_template": "x"}'),
        ("model.GGUF", "GGUF\0\0tokenizer.chat_template.tool_use\0"),
        ("below/tokenizer_config.json", '{"chat_templat\\u0065": [{"name": "default", "template": "x"}]}'),
    ],
)
def test_chat_templates_are_found_in_every_location(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    assert refusal(folder, environ(TEMPLATES)).startswith(f"{folder / name}: forbidden")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer_config.json", '{"bos_token": "<s>"}'),
        ("tokenizer_config.json", "not JSON, so that no template is read from it"),
        ("model.gguf", "GGUF\0\0tokenizer.ggml.tokens\0"),
        ("model.gguf", ""),
    ],
)
def test_a_tokenizer_without_a_chat_template_is_allowed(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert load(folder, environ(TEMPLATES))


def test_untrusted_channels_are_checked(folder: Path) -> None:
    channel = folder.parent / "channel"
    variables = environ(PICKLES, SAGEMAKER_UNTRUSTED_CHANNELS=str(channel))
    assert f"value '{channel}': is not a folder" in refusal(folder, variables)
    channel.mkdir()
    assert load(folder, variables)
    (channel / "model.pkl").write_text("x")
    assert "model.pkl: forbidden" in refusal(folder, variables)


def test_a_model_that_the_file_selects_elsewhere_is_checked(folder: Path) -> None:
    (folder / "model.py").unlink()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (folder / "serving.properties").write_text(f"option.model_id={elsewhere}\n")
    assert load(folder, environ(f"{TEMPLATES},{PICKLES}"))
    (elsewhere / "chat_template.jinja").write_text("x")
    assert f"{elsewhere / 'chat_template.jinja'}: forbidden" in refusal(folder, environ(TEMPLATES))
    for model in ("some/model", "s3://bucket/prefix"):
        (folder / "serving.properties").write_text(f"option.model_id={model}\n")
        assert "its chat template is not known" in refusal(folder, environ(TEMPLATES))
        assert load(folder, environ(PICKLES))
    (folder / "serving.properties").unlink()
    assert load(folder, environ(TEMPLATES, OPTION_MODEL_ID="some/model")), "the operator selected it"


def test_secure_mode_requires_security_controls(folder: Path) -> None:
    text = refusal(folder, {"SAGEMAKER_SECURE_MODE": "true"})
    assert "SAGEMAKER_SECURITY_CONTROLS is not set" in text
    assert load(folder, environ(""))
