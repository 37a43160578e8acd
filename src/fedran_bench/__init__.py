"""What we measure: methods, the streams they run on, runs, results and their report.

It imports ``fedran``, which never imports it. The command line finds ``fedran demo`` and ``fedran
bench`` through an entry point.
"""
