"""Where a federation stands, for people."""
