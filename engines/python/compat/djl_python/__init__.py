"""The Python interface of LMI's handlers, for `model.py` files written for LMI. For handler processes only."""

from .inputs import Input
from .outputs import Output

__all__ = ["Input", "Output"]
