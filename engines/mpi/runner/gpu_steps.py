"""Steps on a GPU: inputs are built from tables on the device, and tokens are sampled and fed back there.

The host sends the numbers of a step in one pinned buffer and goes on. It waits for the device only in
`PendingDeviceTokens.wait`, and in a step with rows that the host samples. Decodes are replayed as CUDA graphs
(`decode_graphs.py`). All work is on one stream, so a step writes to a block only after everything that earlier steps
did there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

import lmi_kernels
from engines.core import PromptLogprob
from engines.kv_cache import KvCache
from engines.layers.paged_step_attention import PagedStepAttention
from engines.layers.rotary import RotaryTables
from engines.models.config import ModelConfig
from engines.models.decoder import Model
from engines.mpi.cache.block_tables import table_triples
from engines.mpi.runner.decode_graphs import DecodeGraphs, DecodeInputs, DecodeOutputs, graph_recorder
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.layout import StepLayout, concatenate_aligned, lay_out
from engines.mpi.runner.pending_device_tokens import PendingDeviceTokens
from engines.mpi.runner.prompt_logprobs import PromptTargets, score_prompts
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN, StepPlan
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.sampling.device import DeviceSampler
from engines.stopwatch import Stopwatch
from lmi_kernels import PagedSequences


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A step that is laid out and on its way to the device."""

    layout: StepLayout
    table_rows: Sequence[int]
    """[num_sampled]: table rows of the sequences that sample, in the plan's order."""
    numbers: torch.Tensor
    """int32, on the device: the layout's arrays, concatenated, or the input of a graph."""
    lengths: Sequence[tuple[int, int]]
    """Lengths of these arrays, with and without padding."""
    bucket: int
    """Batch size of the graph that computes the step; 0 if none does."""
    scored_rows: torch.Tensor | None
    """The layout's `scored_ranges`, int64, on the device; None if no sequence is scored."""


class GpuSteps:
    """`StepRunner` for GPUs."""

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        tables: RotaryTables,
        config: ModelConfig,
        num_kv_heads: int,
        comm: Communicator,
        largest: LargestStep,
        stopwatch: Stopwatch,
    ) -> None:
        """num_kv_heads: KV heads of this rank.
        largest: limits of the tables on the device.
        """
        device = cache.layers[0].device
        if device.type == "cuda":
            # Sums are fp32 everywhere. The default would allow parts of a product to be added up in 16 bits.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._model = model
        self._cache = cache
        self._rotary_tables = tables
        self._num_kv_heads = num_kv_heads
        self._head_dim = config.head_dim
        self._windows = {spec.window for spec in config.attention}
        self._comm = comm
        self._device = device
        self._stopwatch = stopwatch
        # The row after the last one is for padding: it is written but never read.
        self._padding_row = largest.num_seqs
        columns = lmi_kernels.cdiv(largest.max_model_len, cache.block_size)
        self._block_tables = torch.zeros(largest.num_seqs + 1, columns, dtype=torch.int32, device=device)
        self._last_tokens = torch.zeros(largest.num_seqs + 1, dtype=torch.int64, device=device)
        self._sampler: DeviceSampler | None = None
        if comm.rank == 0:
            self._sampler = DeviceSampler(config.vocab_size, largest.num_seqs, device)
        self._graphs = DecodeGraphs(self._decode, device, graph_recorder(device))

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int]) -> None:
        """Capture graphs for decodes of these batch sizes, if the device has graphs. Other batches run eagerly."""
        self._graphs.capture(sizes, self._padding_row)

    def close(self) -> None:
        """Drop the graphs. Ranks call this before they leave their group: a graph may hold its communicator."""
        self._graphs.drop()

    @torch.inference_mode()
    def update(self, plan: StepPlan) -> None:
        self._cache.copy_blocks(plan.copies)
        triples = table_triples(plan.table_updates)
        if len(triples):
            lmi_kernels.update_block_tables(self._block_tables, self._send(triples))

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> DeviceBatch:
        layout = lay_out(plan)
        table_rows = layout.rows[layout.sampled].tolist()
        bucket = 0
        lengths: list[tuple[int, int]] = []
        if layout.num_singles == layout.num_seqs and not len(layout.scored):
            bucket = self._graphs.bucket(layout.num_seqs)
        if bucket:
            numbers = self._pad(layout, bucket)
        else:
            chunk_starts = layout.cu_seqlens_q[layout.num_singles :] - layout.num_singles
            parts = (
                layout.rows,
                layout.starts,
                layout.cu_seqlens_q,
                chunk_starts,
                layout.owners,
                layout.token_ids,
                layout.wanted_rows,
                layout.last_rows,
                layout.rows[layout.sampled],
            )
            numbers, lengths = concatenate_aligned(parts)
        scored = list(chain(*layout.scored_ranges))
        scored_rows = self._send(np.array(scored, dtype=np.int64)) if scored else None
        return DeviceBatch(layout, table_rows, self._send(numbers), lengths, bucket, scored_rows)

    @torch.inference_mode()
    def compute(
        self, batch: DeviceBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        sampler, table_rows = self._sampler, batch.table_rows[: len(rows)]
        if sampler is not None:
            sampler.admit(table_rows, rows)
        if batch.bucket:
            outputs = self._graphs.replay(batch.bucket, batch.numbers)
            places = batch.layout.sampled.tolist()
            if sampler is not None and len(places) < batch.layout.num_seqs:
                # A graph samples for all sequences, including prompt chunks of one token that is not the prompt's last.
                sampler.forget(np.delete(batch.layout.rows, places).tolist())
            scores: list[list[PromptLogprob]] = []
        else:
            outputs, scores = self._compute_eagerly(batch, targets)
            places = list(range(len(batch.layout.sampled)))
        if sampler is None or not places:
            return StepResult(None, scores)
        logits, host_rows = None, sampler.host_rows(table_rows)
        if host_rows and outputs.logits is not None:
            # Not `[host_places]`: indexing with a list would make the host wait for a copy to the device.
            host_places = np.array([places[i] for i in host_rows], dtype=np.int64)
            logits = outputs.logits.index_select(0, self._send(host_places))
        with_logprobs, show_alive = sampler.with_logprobs(table_rows), self._stopwatch.show_alive
        pending = PendingDeviceTokens(outputs, places, host_rows, with_logprobs, show_alive)
        return StepResult(logits, scores, pending)

    def _compute_eagerly(
        self, batch: DeviceBatch, targets: Sequence[PromptTargets]
    ) -> tuple[DecodeOutputs, list[list[PromptLogprob]]]:
        layout = batch.layout
        seqs, singles = layout.num_seqs, layout.num_singles
        rows, starts, cu_seqlens_q, chunk_starts, owners, token_ids, wanted, last_rows, table_rows = _split(
            batch.numbers, batch.lengths
        )
        wanted = wanted.long()
        input_ids, positions, slot_mapping, seq_lens = self._inputs(
            owners, cu_seqlens_q, starts, rows, token_ids
        )
        attention = self._attention(positions, slot_mapping, rows, seq_lens, singles)
        if len(wanted) < len(positions):
            attention = replace(attention, wanted_rows=wanted)
        if singles < seqs:
            prefills = PagedSequences(self._block_tables, rows[singles:], seq_lens[singles:])
            attention = replace(
                attention, prefills=prefills, cu_seqlens_q=chunk_starts, max_query_len=layout.max_query_len
            )
        hidden = self._model.forward(input_ids, self._cache, attention)
        scores: list[list[PromptLogprob]] = []
        if batch.scored_rows is not None:
            scores = score_prompts(
                batch.scored_rows,
                [len(rows) for rows in layout.scored_ranges],
                targets,
                lambda rows: self._model.logits(hidden[rows]),
                self._stopwatch.show_alive,
            )
        if not len(last_rows):
            return DecodeOutputs(last_rows.long(), last_rows > 0, None), scores
        last = last_rows.long()
        # The next token of a sequence directly follows its last one.
        outputs = self._sample(hidden[last], table_rows.long(), positions[wanted[last]] + 1)
        return outputs, scores

    def _decode(self, inputs: DecodeInputs) -> DecodeOutputs:
        """Compute one token of each sequence. Captured in a graph, so it only launches kernels."""
        rows, starts, token_ids = inputs.numbers
        counting = inputs.counting
        input_ids, positions, slot_mapping, seq_lens = self._inputs(
            counting[:-1], counting, starts, rows, token_ids
        )
        attention = self._attention(positions, slot_mapping, rows, seq_lens, len(rows))
        hidden = self._model.forward(input_ids, self._cache, attention)
        return self._sample(hidden, rows.long(), positions + 1)

    def _inputs(
        self,
        owners: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        starts: torch.Tensor,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the token ids, positions, slots and lengths of sequences."""
        known = self._last_tokens, self._block_tables, self._cache.block_size
        return lmi_kernels.step_inputs(owners, cu_seqlens_q, starts, rows, token_ids, *known)

    def _attention(
        self,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        rows: torch.Tensor,
        seq_lens: torch.Tensor,
        num_singles: int,
    ) -> PagedStepAttention:
        singles = PagedSequences(self._block_tables, rows[:num_singles], seq_lens[:num_singles])
        plans = {
            window: lmi_kernels.plan_decode(singles, self._num_kv_heads, self._head_dim, window)
            for window in (self._windows if num_singles else ())
        }
        return PagedStepAttention(positions, slot_mapping, self._rotary_tables, singles, plans)

    def _sample(
        self, hidden: torch.Tensor, table_rows: torch.Tensor, positions: torch.Tensor
    ) -> DecodeOutputs:
        """Sample tokens, and keep rank 0's tokens on every rank. hidden: [n, hidden]; table_rows, positions: [n],
        int64."""
        logits = self._model.logits(hidden)
        logprobs = None
        if logits is not None and self._sampler is not None:
            tokens, finite, logprobs = self._sampler.sample(logits, table_rows, positions)
        else:
            tokens, finite = torch.empty_like(table_rows), torch.ones_like(table_rows, dtype=torch.bool)
        tokens = self._comm.broadcast(tokens)
        self._last_tokens.index_copy_(0, table_rows, tokens)
        return DecodeOutputs(tokens, finite, logits, logprobs)

    def _pad(self, layout: StepLayout, bucket: int) -> npt.NDArray[np.int32]:
        """Return the numbers of `DecodeInputs`, padded: [3, bucket]."""
        numbers = np.empty((3, bucket), dtype=np.int32)
        count = layout.num_seqs
        numbers[0, :count], numbers[0, count:] = layout.rows, self._padding_row
        numbers[1, :count], numbers[1, count:] = layout.starts, -1
        numbers[2, :count], numbers[2, count:] = layout.token_ids, UNKNOWN_TOKEN
        return numbers

    def _send(self, numbers: npt.NDArray[np.generic]) -> torch.Tensor:
        """Copy to the device without waiting. Torch keeps the pinned copy until it has arrived."""
        tensor = torch.from_numpy(numbers)
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


def _split(numbers: torch.Tensor, lengths: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """Split the concatenated arrays of `concatenate_aligned` again."""
    pieces, at = [], 0
    for padded, length in lengths:
        pieces.append(numbers[at : at + length])
        at += padded
    return pieces
