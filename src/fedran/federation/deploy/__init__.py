"""Keys, certificates, processes: a federation on real machines."""
