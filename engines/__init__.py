"""The engine level: scheduler, KV cache, models. Imports `lmi_kernels` only; no Flask, no environment in here."""
