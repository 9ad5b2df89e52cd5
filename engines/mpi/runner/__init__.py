"""Execution of planned steps on CPUs and GPUs."""
