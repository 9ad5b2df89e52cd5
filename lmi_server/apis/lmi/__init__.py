"""LMI's own bodies and answers: `/invocations` and its other names."""
