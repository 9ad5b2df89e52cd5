"""LMI's bodies and answers: `/invocations` and its aliases."""
