"""User handlers under engine=Python: `model.py` files written for LMI, run in worker processes."""
