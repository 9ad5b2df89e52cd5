"""The HTTP level: properties, dialects, text. Imports `engines`, never torch."""
