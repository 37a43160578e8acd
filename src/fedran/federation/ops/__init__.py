"""Operates a federation: folders, keys, enrolment, processes, tasks."""
