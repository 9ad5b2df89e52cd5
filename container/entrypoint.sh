#!/bin/sh
# What the image runs. `serve`, which is also the default, serves the model folder; other words are run as a command.
# `exec` leaves no shell behind: signals reach the server itself.
set -eu

if [ "${1:-serve}" = serve ]; then
    if [ "$#" -gt 0 ]; then shift; fi
    exec lmi serve "${LMI_MODEL_DIR:-/opt/ml/model}" "$@"
fi
exec "$@"
