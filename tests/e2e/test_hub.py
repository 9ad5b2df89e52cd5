"""`lmi serve` with a Hub id. The local hub has a model without a tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub_server import HubServer
from tests.support.model_files import NO_PROXY
from tests.support.server import Server
from tests.support.tokenizers import save_gpt2

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ID = "owner/tiny"
PROMPT = "the quick brown fox"
PROPERTIES = f"engine=MPI\noption.model_id={ID}\noption.revision=v1\noption.tensor_parallel_degree=1\n"


@pytest.fixture
def hub(tmp_path: Path) -> HubServer:
    from tests.support.tiny_models import save_llama  # imports torch

    server = HubServer()
    for seed, tag in ((1, "v1"), (2, "v2")):
        folder = tmp_path / tag
        size = save_gpt2(folder)
        save_llama(folder, seed=seed, vocab_size=size, bos_token_id=0, eos_token_id=0)
        server.commit(ID, folder, tag=tag)
    return server


def test_a_hub_id_with_a_revision_is_served(hub: HubServer, tmp_path: Path) -> None:
    """`tests/container/models/files/test_hub_processes.py` covers the second start, without the hub."""
    environment = {
        **NO_PROXY,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "LMI_CACHE_DIR": str(tmp_path / "cache"),
    }
    with hub, Server(tmp_path / "server", PROPERTIES, environment=environment) as server:
        answer = server.client.generate(PROMPT, max_new_tokens=12)
        assert answer.token_ids == _greedy_tokens(tmp_path / "v1", 12)
        assert server.client.get("/v1/models").json()["data"][0]["root"] == ID
        assert PROMPT not in server.log()
        assert answer.text.strip() not in server.log()
        assert server.log().count("converting the tokenizer") == 1
    assert not (tmp_path / "home").exists()


def _greedy_tokens(folder: Path, count: int) -> list[int]:
    from transformers import AutoTokenizer  # imports torch

    from tests.support.tiny_models import load_oracle

    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    tokens = load_oracle(folder, "fp32").generate(ids, max_new_tokens=count, do_sample=False)
    return list(tokens[0, ids.shape[1] :].tolist())
