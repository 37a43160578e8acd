"""One module per figure of the report."""
