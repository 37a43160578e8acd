"""Methods that train a network or a head."""
