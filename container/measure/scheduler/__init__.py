"""Figures of the scheduler and the KV cache's allocators by themselves: the real ones, and no model."""
