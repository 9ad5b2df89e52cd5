"""Peers. Each has its own file and a place in `PEERS`."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.peers import llama_cpp, openvino, transformers, vllm
from tests.bench.peers.peer import Peer

PEERS: Mapping[str, Peer] = {
    peer.name: peer for peer in (*transformers.PEERS, *openvino.PEERS, *vllm.PEERS, *llama_cpp.PEERS)
}
