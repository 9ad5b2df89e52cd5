"""Runs the steps that the scheduler planned, on CPUs and GPUs."""
