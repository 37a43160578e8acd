"""The methods of the benchmark, one file each, all behind one protocol."""
