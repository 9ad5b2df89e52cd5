"""The HTTP server: configuration, API dialects and text processing. Imports `engines`, never torch."""
