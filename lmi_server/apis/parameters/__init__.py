"""Request parameters: the table, parsing, combinations, and the sampling that they ask for."""
