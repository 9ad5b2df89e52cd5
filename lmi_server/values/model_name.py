"""Names of models in paths, folders and the multi-model API."""

from __future__ import annotations

import re

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MODEL_NAME_RULE = "1 to 128 letters, digits, '.', '_' and '-', the first a letter or a digit"
