"""Benchmarks: each claim is a ratio of things measured side by side in one run."""
