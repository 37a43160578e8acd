"""A federation of sites and a server, on Flower.

``protocol`` is what both sides share, and ``secure`` how sites add vectors that nobody sees.
``site`` and ``server`` are what each side does with messages. ``flower`` carries them, and is the
only package that imports Flower. ``status`` shows the state of a federation, and ``ops`` makes
folders and runs the processes. Imports go in this order only.

One task passes through these modules:

1. ``ops.tasks`` starts a run of Flower. ``flower.serverapp`` opens the store, and ``server.round``
   sends an offer (``protocol.messages``) to every connected site.
2. ``site.app`` answers, called by ``flower.clientapp``. ``site.worker`` starts a process, in which
   ``site.source`` reads the rows and ``site.upload`` makes a summary or a mixture of them. The
   signed envelope (``protocol.identity``) waits in ``site.outbox``.
3. ``server.store`` decides about each envelope: ``server.admission`` refuses,
   accepts, or asks a person. What is accepted goes to ``server.database``, then into the
   sum (``server.state``).
4. ``server.head`` solves the classifier, and ``server.gate`` tests it. Receipts
   (``protocol.receipts``) and classifier go back to the sites.

With secure sums, ``server.secure_round`` and ``site.secure`` exchange masked vectors instead, and
``server.cohorts`` puts their sum into the store.
"""
