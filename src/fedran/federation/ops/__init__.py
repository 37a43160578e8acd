"""Operating a federation: folders, keys, processes."""
