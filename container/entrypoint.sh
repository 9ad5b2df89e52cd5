#!/bin/sh
# Entry point of the image. `serve`, the default, serves the model folder. Other arguments are run as a command.
# `exec` replaces the shell, so that signals reach the server.
set -eu

if [ "${1:-serve}" = serve ]; then
    if [ "$#" -gt 0 ]; then shift; fi
    exec lmi serve "${LMI_MODEL_DIR:-/opt/ml/model}" "$@"
fi
exec "$@"
