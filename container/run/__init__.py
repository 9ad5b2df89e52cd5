"""Runs a server: the processes, their start, watch and end."""
