"""Find and load the shared library of native kernels, and select its instruction set."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from lmi_kernels.cpu.structs import Layout, Op, Step, Struct

logger = logging.getLogger(__name__)

CHOICE = "LMI_CPU_KERNELS"
"""Environment variable with the name of an instruction set, or `torch` to disable native kernels."""
INSTRUCTIONS = ("avx2", "avx512", "avx512_vnni", "amx")
_ACCEPTED = (*INSTRUCTIONS, "torch")


class Library:
    """Functions of the library. They are called by ctypes, which releases the GIL during a call."""

    def __init__(self, path: Path, wanted: str | None = None) -> None:
        """wanted: instruction set; None: the best one of the processor.

        Raises:
            OSError: the file cannot be loaded.
            AttributeError, ValueError: the library was built from other sources.
            ValueError: the processor lacks the instruction set.
        """
        library = ctypes.CDLL(str(path))

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        if function("lmi_struct_sizes", c_int64)() != sum(map(ctypes.sizeof, Struct.__subclasses__())):
            raise ValueError(f"{path.name} was built from other sources; run `make -B install`")
        self.team_new = function("lmi_team_new", c_void_p, c_int32)
        self.team_free = function("lmi_team_free", None, c_void_p)
        self.team_show_alive_at = function("lmi_team_show_alive_at", None, c_void_p, POINTER(c_double))
        self.run = function("lmi_run", None, c_void_p, POINTER(Op), c_int64, POINTER(Step), POINTER(c_double))
        self.lay_out = function("lmi_lay_out", c_bool, POINTER(Layout), POINTER(Step))
        self.weight_new = function("lmi_weight_new", c_void_p, c_int64, c_int64, c_int32, c_int32)
        self.weight_free = function("lmi_weight_free", None, c_void_p)
        blocks = POINTER(c_void_p), POINTER(c_int64)
        self.weight_pack = function(
            "lmi_weight_pack",
            c_bool,
            c_void_p,
            c_void_p,
            *blocks,
            c_int32,
            c_void_p,
            c_void_p,
            c_int64,
            c_bool,
        )
        self.attention_scratch_bytes = function("lmi_attention_scratch_bytes", c_int64, *[c_int32] * 4)
        """(number of threads, query heads, KV heads, head_dim) -> bytes of `Attention.scratch`."""
        choose = function("lmi_use_instructions", c_char_p, c_char_p)
        name: bytes | None = choose(wanted.encode() if wanted else None)
        if name is None:
            raise ValueError(f"this processor has no {wanted or 'AVX2'} instructions")
        self.instructions = name.decode()


def library_path() -> Path | None:
    """Return the path of the installed library, or None if it was not built."""
    return next(iter(sorted(Path(__file__).parent.glob("_native*.so"))), None)


@cache
def load() -> Library | None:
    """Load the library. Return None, and log the reason, if only torch's CPU kernels are used.

    Raises:
        ValueError: `LMI_CPU_KERNELS` has an unknown value, or this processor lacks the instruction set.
    """
    wanted = os.environ.get(CHOICE)
    if wanted not in (None, "", *_ACCEPTED):
        raise ValueError(f"{CHOICE}: not supported (got {wanted!r}); allowed: {', '.join(_ACCEPTED)}")
    if wanted == "torch":
        logger.info("CPU kernels: torch (%s=torch)", CHOICE)
        return None
    path = library_path()
    if path is None:
        logger.info(
            "CPU kernels: torch; native kernels are not built (install g++ and run `make -B install`)"
        )
        return None
    try:
        library = Library(path, wanted or None)
    except (OSError, ValueError, AttributeError) as error:  # Attribute: an old library lacks a function
        if wanted:
            raise ValueError(f"{CHOICE}={wanted}: {error}") from None
        logger.info("CPU kernels: torch; the native kernels cannot be used: %s", error)
        return None
    logger.info("CPU kernels: native, %s", library.instructions)
    return library
