"""`lmi tune`: search batching configurations by simulation, and verify the best of them by running them."""
