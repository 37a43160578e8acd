"""What travels between sites and the server, and who signed it."""
