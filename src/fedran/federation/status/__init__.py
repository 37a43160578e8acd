"""The state of a federation, read from the server's files and shown to people."""
