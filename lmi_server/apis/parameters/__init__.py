"""Request parameters: the table, parsing, checks of combinations, and conversion to sampling parameters."""
