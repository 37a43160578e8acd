"""``fedran ...``: thin commands over the library; nothing is computed here."""
