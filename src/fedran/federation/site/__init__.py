"""A site: from rows to a signed upload, and the outbox that keeps it until the server has it."""
