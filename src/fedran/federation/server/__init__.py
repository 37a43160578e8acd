"""The server: the store of accepted uploads, and the run of a task."""
