"""Every accepted upload exactly once: which are accepted, and what follows from them."""
