"""The certificate of a head on the digits, as the documentation describes it."""

import numpy as np

import fedran
from fedran.data.catalogue import digits


def test_the_certificate_is_vacuous_at_default_settings_and_tight_without_loss():
    """What the documentation says of the bound: a diagnosis, not a promise."""
    d = digits()
    phi = fedran.RandomFeatures(64, 512)
    H, H_test = (phi(X).astype(np.float64) for X in (d.X_train, d.X_test))
    shares = {}
    for rank, precision in ((16, "mixed"), (None, "float64")):
        agg = fedran.Aggregator(512, dtype="float64")
        upload = fedran.encode(fedran.summarize(H, d.y_train, rank), precision)
        agg.absorb(fedran.decode(upload), client="a", task="t")
        shares[rank] = agg.solve().certify(H_test).mean()
    assert shares[16] == 0
    assert shares[None] > 0.9
