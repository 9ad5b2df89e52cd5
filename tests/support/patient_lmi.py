"""`python -m tests.support.patient_lmi prepare ...`: `lmi` with longer time limits, for busy machines."""

from __future__ import annotations

import sys

from container.cli import main
from container.models.files import retry


def extend_time_limits() -> None:
    """Change only the needed modules, since they import boto3 or huggingface_hub."""
    retry.SILENCE_SECONDS = 60.0
    if any(word.startswith("s3://") for word in sys.argv):
        from container.models.files.s3 import remote as s3

        s3._READ_SECONDS = 30.0
    else:
        from container.models.files.hub import remote as hub

        hub._SILENCE_SECONDS, hub._ANSWER_SECONDS = 30.0, 60.0


if __name__ == "__main__":
    extend_time_limits()
    main(sys.argv[1:], prog_name="lmi")
