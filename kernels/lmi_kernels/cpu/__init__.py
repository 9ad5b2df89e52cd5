"""Native CPU kernels: weights in panels, and programs of operations that a team of threads runs in one call."""
