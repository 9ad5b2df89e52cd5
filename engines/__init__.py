"""The engine level: scheduler, KV cache, models. Imports `lmi_kernels` only; no Flask, and no environment variables."""
