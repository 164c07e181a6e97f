"""Benchmarks: one module each, run as `python -m benchmarks.NAME`; benchmarks/README.md lists them."""
