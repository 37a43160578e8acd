"""Results as one page per dataset, as tables in the terminal, and as files."""
