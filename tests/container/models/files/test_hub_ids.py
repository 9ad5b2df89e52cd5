"""Valid hub ids, and suggestions for common mistakes. No connection is made."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from huggingface_hub.utils import HFValidationError, validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.hub.source import HubModels
from container.progress import LogLines
from lmi_server.config import ModelSource


def is_valid(repo_id: str) -> bool:
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        return False
    return True


@given(
    st.text(st.sampled_from("aZ0-_./ é\n"), min_size=1, max_size=9) | st.text("ab/", min_size=90, max_size=99)
)
def test_ids_are_valid_if_the_library_accepts_them(text: str) -> None:
    assert (HubModels().refusal(ModelSource(text)) is None) == is_valid(text)


def test_only_hub_models_have_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "owner" / "here").mkdir(parents=True)
    for model_id in ("owner/name", "HuggingFaceTB/SmolLM2-135M-Instruct", "owner/name:Q4_K_M"):
        assert model_files.hub_id(ModelSource(model_id, str(tmp_path))) == model_id
    for other in (None, "owner/here", "/owner/name", "s3://bucket/owner", "owner name", "gs://owner/name"):
        assert model_files.hub_id(ModelSource(other, str(tmp_path))) == ""


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("models/big/llama", "this looks like a path, but there is no folder"),
        ("models\\llama", "this looks like a path"),
        ("owner/name/", "did you mean owner/name?"),
        ("owner/name.git", "did you mean owner/name?"),
        (
            "owner/name@v1.0",
            "set option.model_id=owner/name and option.revision=v1.0 (lmi prepare: --revision v1.0)",
        ),
        ("owner/name:main", "set option.model_id=owner/name and option.revision=main"),
        ("owner name", "not a Hub id"),
        ("https://huggingface.co/owner/name", "did you mean owner/name"),
        ("https://huggingface.co/owner/name/tree/main", "did you mean owner/name"),
        ("hf://owner/name@v1", "did you mean owner/name"),
        ("https://example.com/owner/name", "'https://' is not supported"),
        (
            "gs://bucket/model",
            "'gs://' is not supported; allowed: a local folder or GGUF file, a Hub id, s3://bucket/prefix",
        ),
    ],
)
def test_an_invalid_id_is_rejected_with_a_suggestion(model_id: str, words: str, tmp_path: Path) -> None:
    source = ModelSource(model_id, str(tmp_path))
    refusal = model_files.refusal(source)
    assert words in (refusal or "")
    assert model_files.locate(source, tmp_path) is None
    with pytest.raises(ModelNotAvailable) as caught:
        model_files.obtain(source, LogLines(io.StringIO()), tmp_path)
    assert str(caught.value) == refusal


@pytest.mark.parametrize(
    "revision", ["a b", "a..b", "-x", "/x", "x/", "x.", "a~1", "HEAD^", "a:b", "x" * 256, "\n"]
)
def test_an_invalid_git_revision_is_rejected(revision: str) -> None:
    refusal = model_files.refusal(ModelSource("owner/name", revision=revision))
    assert "a branch, a tag or a commit" in (refusal or "")


@pytest.mark.parametrize("revision", [None, "", "main", "v1.0", "refs/pr/3", "0" * 40, "feature/x#1"])
def test_branches_tags_and_commits_are_accepted(revision: str | None) -> None:
    assert model_files.refusal(ModelSource("owner/name", revision=revision)) is None
