"""Every folder in properties_examples is valid, and the AWS files equal the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.models.architectures import ARCHITECTURES
from lmi_server.properties.loader import load

EXAMPLES = Path(__file__).parents[3] / "properties_examples"
FOLDERS = sorted(folder for folder in EXAMPLES.iterdir() if folder.is_dir())

ROLLING = b"""engine = MPI
option.model_id = s3://my-bucket/falcon-40b/
option.trust_remote_code = true
option.tensor_parallel_degree = 8
option.max_rolling_batch_size = 32
option.rolling_batch = auto
option.dtype = fp16
option.max_rolling_batch_prefill_tokens = 1024
option.paged_attention = False
"""
DYNAMIC = b"""engine=Python
option.model_id=tiiuae/falcon-40b
option.tensor_parallel_degree=8
option.dtype=fp16
batch_size=4
max_batch_delay=100
option.trust_remote_code = true
"""
PAGED = ROLLING.replace(b"False", b"True")


def test_the_readme_has_a_row_for_each_folder_and_calls_no_architecture_unknown() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert sorted(rows) == [folder.name for folder in FOLDERS]
    assert "FalconForCausalLM" in ARCHITECTURES
    assert "not know" not in text


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_loads_without_a_warning(folder: Path) -> None:
    assert load(folder, {}).warnings == ()


@pytest.mark.parametrize(
    ("published", "variant", "content"),
    [
        ("aws-post-dynamic", "smollm2-dynamic", DYNAMIC),
        ("aws-post-rolling", "smollm2-rolling", ROLLING),
        ("aws-post-rolling-paged", "smollm2-rolling-paged", PAGED),
    ],
)
def test_the_aws_files_are_as_published_and_the_variants_differ_only_in_model_degree_and_dtype(
    published: str, variant: str, content: bytes
) -> None:
    assert (EXAMPLES / published / "serving.properties").read_bytes() == content
    ours = (EXAMPLES / variant / "serving.properties").read_bytes().splitlines()
    lines = zip(ours, content.splitlines(), strict=True)
    differing = {mine.split(b"=")[0].strip() for mine, theirs in lines if mine != theirs}
    assert differing == {b"option.model_id", b"option.tensor_parallel_degree", b"option.dtype"}
