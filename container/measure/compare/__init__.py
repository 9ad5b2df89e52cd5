"""`lmi compare`: the same load on several configurations, one after the other, and the statistics of the results."""
