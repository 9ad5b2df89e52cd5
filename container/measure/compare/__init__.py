"""`lmi compare`: the same workload on several configurations, one after the other, and what it shows."""
