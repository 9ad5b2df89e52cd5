"""`python -m engines.start MODULE ...`: run the `main` function of an engine's process.

Its modules are imported without garbage collection, which would take a tenth of the time and find nothing.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    module = sys.argv.pop(1)
    gc.disable()
    main = import_module(module).main
    gc.freeze()
    gc.enable()
    sys.exit(main())
