"""`python -m lmi_kernels.cpu`: print which CPU kernels are used, and why."""

import logging
import sys

from lmi_kernels.cpu.library import load

logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
try:
    if load() is None:
        print(
            "torch serves on a CPU, more slowly; option.quantize and 8-bit and 16-bit KV caches are refused"
        )
except ValueError as error:
    print(f"CPU kernels: {error}")
