"""A real federation: identity, an exactly-once journal, a server that survives being killed."""
