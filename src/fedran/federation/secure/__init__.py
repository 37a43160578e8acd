"""Secure sums: the server learns the sum of the sites' vectors and nothing else about one site.

``attempt`` defines what is agreed and the messages, ``masking`` is the site's side, ``unmasking``
is the server's side. ``ciphers`` and ``shamir`` hold the cryptography. Nothing here opens a file or
a connection. ``docs/explanation/secure-sums.md`` explains the protocol.
"""
