"""LMI's Python interface for handlers, for `model.py` files written for LMI. Used in handler processes only."""

import sys

from ._unsupported import UnsupportedModules
from .inputs import Input
from .outputs import Output
from .pair_list import PairList

__all__ = ["Input", "Output", "PairList"]

sys.meta_path.append(UnsupportedModules())
