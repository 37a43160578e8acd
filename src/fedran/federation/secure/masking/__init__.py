"""The protocol of a secure sum, from bytes to bytes.

``attempt`` defines what is agreed and the messages. ``masking`` is the site's side, ``unmasking``
the server's. ``ciphers`` holds the cryptography, and ``contribution`` says what the numbers mean.
"""
