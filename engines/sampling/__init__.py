"""From logits to tokens: one file a step, `sampler.py` runs them over the batch.

What a row gets has the same bits alone and in any batch: a step computes a row from that row alone, floating-point sums
are left to softmax, which torch does row by row, and where anything else is added up it is added as whole numbers
(`lmi_kernels/sampling/nucleus.py`), whose order does not matter.
"""
