"""Sampling: from logits to tokens. `sampler.py` runs the steps over a batch, one file for each kind of step.

A row gets the same bits alone and in any batch. Each step computes a row from that row alone; floating-point sums are
left to softmax, which torch computes row by row; all other sums are of whole numbers
(`lmi_kernels/sampling/nucleus.py`), whose order does not matter.
"""
