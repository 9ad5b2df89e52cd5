"""engine=MPI: rolling batching over ranks. `worker.py` is the program; its scheduler imports no torch."""
