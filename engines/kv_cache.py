"""The KV cache's tensors, and what layers need to see of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lmi_kernels import Workspace
from lmi_kernels.attention_plan import AttentionGroup


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where a step's tokens stand; made once a step, an argument of every layer.

    Rows beyond `num_tokens` are padding: computed, never stored, never attended to.
    """

    num_tokens: int
    slot_mapping: torch.Tensor
    """[num_tokens], int64."""
    cos: torch.Tensor
    """[num_rows, 1, head_dim], fp32."""
    signed_sin: torch.Tensor
    """[num_rows, 1, head_dim], fp32; see `lmi_kernels.rotary_`."""
    groups: tuple[AttentionGroup, ...]


class KvCache:
    """One pool a layer, [2, num_kv_heads, num_blocks, block_size, head_dim], keys first: one head's page is a
    contiguous box and a run of pages is a view. Only `store_kv` writes it.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_blocks: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 2, num_kv_heads, num_blocks, block_size, head_dim)
        # Zeroed, since hidden keys are multiplied by 0 and 0 * NaN is NaN. On a CPU numpy's zeros are pages that
        # the kernel gives only when they are written: a large cache costs nothing at the start.
        if device.type == "cpu" and dtype == torch.float32:
            pools = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            pools = torch.zeros(shape, dtype=dtype, device=device)
        self._pools = pools
        self.layers = list(pools.unbind(0))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.workspace = Workspace()

    def scrub(self, blocks: list[int]) -> None:
        """Zero blocks whose content is not finite, before anyone else gets them."""
        if blocks:
            self._pools[:, :, :, blocks] = 0
