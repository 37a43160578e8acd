"""What server and sites exchange, and how they prove who they are."""
