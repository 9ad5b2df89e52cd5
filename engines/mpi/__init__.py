"""engine=MPI: rolling batching over ranks. `worker.py` is the program of a rank; the scheduler imports no torch."""
