"""The kernel level: one file an operation, each with its contract and a torch reference. Imports torch only."""
