"""Measured results as a page for people: HTML with plots, or Markdown."""
