"""The mathematics of FedRAN: arrays in, frozen dataclasses out; no files, no network, no torch."""
