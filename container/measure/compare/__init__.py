"""`lmi compare`: benchmark several configurations in turn under the same load, with statistics of the results."""
