"""One module per table of the report."""
