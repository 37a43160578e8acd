"""A site's side: rows, outbox, the work for a task, edges."""
