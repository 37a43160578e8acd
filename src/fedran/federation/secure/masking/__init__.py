"""The protocol of a secure sum, from bytes to bytes.

``attempt`` defines what is agreed and the messages. ``masking`` is the site's side, ``unmasking``
the server's. ``ciphers`` and ``shamir`` hold the cryptography, and ``contribution`` says what the
numbers mean, and what they spend.
"""
