"""Sampling: from logits to tokens. `sampler.py` runs the steps over a batch; each kind of step has its own file.

A row gets the same bits alone and in any batch. Each step computes a row from that row alone. Floating-point sums are
left to softmax, which torch computes row by row. All other sums are of integers (`lmi_kernels/sampling/nucleus.py`),
whose order does not matter.
"""
