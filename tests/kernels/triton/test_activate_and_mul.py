from __future__ import annotations

import pytest
import torch

from lmi_kernels import Activation, activate_and_mul
from lmi_kernels._triton import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "quick_gelu", "relu"])
def test_gates_saturate_far_from_zero(kind: Activation) -> None:
    gate_up = torch.tensor([[-1e3, -1e10, 1e3, 1e10, 2.0, 2.0, 2.0, 2.0]])
    assert activate_and_mul(gate_up, kind).tolist() == [[0, 0, 2e3, pytest.approx(2e10)]]
