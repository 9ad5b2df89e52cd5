"""`python -m container`: the `lmi` command."""

from container.cli import main

main(prog_name="lmi")
