"""Secure sums: the server learns the sum of the sites' vectors, but not that of one site.

``masking`` is the protocol without network and files. ``server`` and ``site`` hold what each side
adds to its other work. ``docs/explanation/secure-sums.md`` explains the protocol.
"""
