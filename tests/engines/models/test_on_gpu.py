"""Small models of each kind on a GPU, through the whole engine, compared with transformers on the same GPU.

Requires only torch, triton, transformers and pytest. `make gpu-check` runs the same check with larger models.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.context import Context
from tests.gpu.parts.engine import check_model
from tests.gpu.results import Results
from tests.gpu.timing import Deadline
from tests.support.published_models import PUBLISHED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    # Warnings of transformers.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_tokens_and_logits_match_transformers(kind: str, tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    results = Results("engine", device, smoke=True)
    context = Context(results, device, smoke=True, folder=tmp_path, out=tmp_path, deadline=Deadline(600.0))
    check_model(context, kind, tmp_path / kind)
    assert results.entries
    assert not results.failed
