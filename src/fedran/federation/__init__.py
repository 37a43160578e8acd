"""A federation of sites and a server, on Flower.

``protocol`` is what both sides share. ``site`` and ``server`` are what each side does with
messages, and ``secure`` how sites add vectors that nobody sees. ``flower`` carries the messages,
and is the only package that imports Flower. ``status`` shows the state of a federation, and ``ops``
makes folders and runs the processes. Imports go one way, as pyproject.toml says.

One task passes through these modules:

1. ``ops.tasks`` starts a run of Flower. ``flower.serverapp`` begins a round, and
   ``server.round.round`` sends an offer (``protocol.messages``) to every connected site.
2. ``site.app`` answers, called by ``flower.clientapp``. ``site.source`` reads the rows and
   ``site.upload`` makes points or a summary of them. The signed envelope (``protocol.identity``)
   waits in ``site.outbox``.
3. ``server.store.store`` decides about each envelope: ``server.store.admission`` refuses, accepts,
   or asks a person. What is accepted goes to ``server.store.database``; ``server.store.state``
   knows what follows from it.
4. ``server.head.head`` solves the classifier, and ``server.head.gate`` tests it. Receipts
   (``protocol.receipts``) and classifier go back to the sites.

With secure sums, ``secure.server.secure_round`` and ``secure.site.participant`` exchange masked
vectors (``secure.masking``) instead, and ``secure.server.open_sum`` puts their sum into the store.
"""
