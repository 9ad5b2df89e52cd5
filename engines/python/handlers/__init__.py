"""Handlers of users under engine=Python: `model.py` files written for LMI, run in processes of their own."""
