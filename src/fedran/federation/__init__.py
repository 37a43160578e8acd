"""A federation of sites and a server, on Flower.

``protocol`` is what both sides share, and ``secure`` how sites add vectors that nobody sees.
``site`` and ``server`` contain the two Flower apps (``site.app`` and ``server.app``). ``edge`` sums
uploads of several sites, ``status`` shows the state of a federation, and ``ops`` makes folders and
keys and runs the processes. Imports go in this order only.
"""
