"""Everything that touches Flower. The rest of the federation knows messages, not Flower.

``programs`` and ``control`` are for whoever operates a federation: command lines of Flower's
programs, and the interface of the SuperLink's owner. ``superlink`` and ``executor`` are programs
that take the place of Flower's own. ``serverapp`` and ``clientapp`` are the two apps; they turn
Flower's records into the fields and blobs of our messages (``records``). ``private`` names what is
used of Flower without a promise that the next version still has it.
"""
