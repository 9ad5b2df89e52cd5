"""`lmi report`: measured results as an HTML page with plots."""
