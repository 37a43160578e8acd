"""The server's side: what it keeps, and how a task goes."""
