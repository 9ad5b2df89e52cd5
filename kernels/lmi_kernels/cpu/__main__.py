"""`python -m lmi_kernels.cpu`: print whether native kernels are built, and which instruction set is used."""

from lmi_kernels.cpu.library import load

library = load()
if library is not None:
    print(f"native CPU kernels: {library.instructions}")
else:
    print("native CPU kernels are not built or not usable here: torch serves on a CPU, more slowly, and")
    print("option.quantize=int8 is refused; g++ and another installation build them")
