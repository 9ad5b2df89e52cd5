"""Commands that measure servers: benchmarks, comparisons, simulation, tuning, profiles, KV cache waste."""
