"""Tasks and clients: which rows a client has in which task."""
