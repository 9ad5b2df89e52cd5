"""`python -m engines.start MODULE ...`: run the `main` function of an engine's process.

Its modules are imported without garbage collection, which would take a tenth of the time and find nothing. Before that,
because imports take seconds, the process makes sure that it ends with its parent, and not earlier.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from engines.process import die_with_parent, outlive_sigterm

if __name__ == "__main__":
    die_with_parent()
    outlive_sigterm()
    module = sys.argv.pop(1)
    gc.disable()
    main = import_module(module).main
    gc.freeze()
    gc.enable()
    sys.exit(main())
