"""Secure sums: the server learns the sum of the sites' vectors, but not that of one site.

``attempt`` defines what is agreed and the messages, ``masking`` is the site's side, ``unmasking``
is the server's side. ``ciphers`` and ``shamir`` hold the cryptography. Nothing here opens a file or
a connection. ``docs/explanation/secure-sums.md`` explains the protocol.
"""
