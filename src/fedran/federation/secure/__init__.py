"""Secure sums: the server learns the sum of the sites' vectors, but not that of one site.

``attempt`` defines what is agreed and the messages. ``masking`` is the site's side,
``unmasking`` the server's side. ``ciphers`` and ``shamir`` hold the
cryptography, and ``contribution`` says what the numbers mean, and what they spend. ``pinning`` and
``coordinator`` keep files: the roster that a site trusts, and the attempts of the server.
``docs/explanation/secure-sums.md`` explains the protocol.
"""
