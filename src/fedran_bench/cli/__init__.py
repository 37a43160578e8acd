"""The commands ``fedran demo`` and ``fedran bench``, as entry points of the command line."""

from fedran.cli.lazy import Command

COMMANDS = {
    "demo": Command(
        "Compare six methods on scikit-learn's digits. Takes some seconds.",
        "fedran_bench.cli.demo",
    ),
    "bench": Command(
        "Run methods on the same streams, and report what they reached.", "fedran_bench.cli.bench"
    ),
}
