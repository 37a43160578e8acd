"""The federated trainer: networks, local training, averaging, messages, replay."""
