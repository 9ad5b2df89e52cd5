"""Models of engine=MPI: one description per architecture, and the decoder that is built from a description."""
