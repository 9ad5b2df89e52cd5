"""`python -m engines.start MODULE ...`: run the `main` function of an engine's process.

Its modules are imported without garbage collection, which would take a tenth of the time and find nothing. Before that,
the process binds its life to its parent's, because imports take seconds.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from engines.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    module = sys.argv.pop(1)
    gc.disable()
    main = import_module(module).main
    gc.freeze()
    gc.enable()
    sys.exit(main())
