"""The server: the store of accepted uploads, the head over them, and the run of a task."""
