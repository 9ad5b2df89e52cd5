"""The models of engine=MPI: descriptions of architectures, and one decoder that is built from them."""
