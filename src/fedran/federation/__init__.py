"""A federation of real sites on Flower.

``client_app`` and ``server_app`` are the two apps that Flower runs. ``messages`` travel between
them; ``sites`` and ``server`` are the two sides; ``deploy`` makes keys and keeps processes
running; ``status`` shows where things stand.
"""
