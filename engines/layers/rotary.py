"""The cosine and sine tables of rotary embedding, for all positions, made once."""

from __future__ import annotations

import math

import torch

from engines.models.config import ModelConfig, RopeScaling


class RotaryTable:
    """Cosines and sines by position, in one of two forms: for CPUs as `lmi_kernels.rotary_` takes them, each over the
    whole head; for GPUs half as large, as one table."""

    def __init__(
        self, config: ModelConfig, num_positions: int, device: torch.device, as_table: bool | None = None
    ) -> None:
        """as_table: the form for GPUs, or (false) for CPUs; None: by the device."""
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        inverse_frequencies = 1.0 / (config.rope_theta**exponents)
        if config.rope_scaling is not None:
            inverse_frequencies = _scale(inverse_frequencies, config.rope_scaling)
        angles = torch.outer(torch.arange(num_positions).float(), inverse_frequencies)
        cos, sin = angles.cos(), angles.sin()
        if as_table is None:
            as_table = device.type == "cuda"
        self._table = torch.cat((cos, sin), dim=-1).to(device) if as_table else None
        self._whole: tuple[torch.Tensor, torch.Tensor] | None = None
        if not as_table:
            cos, signed_sin = _over_the_head(cos, sin)
            self._whole = cos.to(device), signed_sin.to(device)

    @property
    def table(self) -> torch.Tensor:
        """[num_positions, head_dim], fp32: cosines, then sines, of the angles of a head's first half.

        Raises:
            ValueError: it was not asked for.
        """
        if self._table is None:
            raise ValueError("these cosines and sines are not kept as a table")
        return self._table

    def lookup(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [num_rows], int64 -> cos and signed sin, each [num_rows, 1, head_dim], fp32; see
        `lmi_kernels.rotary_`."""
        if self._whole is None:
            return _over_the_head(*self.table[positions].chunk(2, dim=-1))
        cos, signed_sin = self._whole
        return cos[positions], signed_sin[positions]


def _over_the_head(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, head_dim / 2] each -> [n, 1, head_dim] each, the sines of the first half with their sign turned."""
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def _scale(inverse_frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Stretch frequencies: all of them, or (Llama 3.1) the slow ones, with a ramp between."""
    if scaling.kind == "linear":
        return inverse_frequencies / scaling.factor
    low = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high = scaling.original_max_position_embeddings / scaling.high_freq_factor
    wavelengths = 2 * math.pi / inverse_frequencies
    ramp = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    ramped = (1 - ramp) * inverse_frequencies / scaling.factor + ramp * inverse_frequencies
    slow = torch.where(wavelengths > low, inverse_frequencies / scaling.factor, inverse_frequencies)
    return torch.where((wavelengths <= low) & (wavelengths >= high), ramped, slow)
