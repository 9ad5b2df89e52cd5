#!/bin/sh
# Entry point of the image. `serve`, the default, is `lmi serve`. Other arguments are run as a command.
# `exec` replaces the shell, so that signals reach the server.
set -eu

[ "$#" -gt 0 ] || set -- serve
[ "$1" != serve ] || set -- lmi "$@"
exec "$@"
