"""Benchmarks: every number with its baseline and a rival, measured in the same run."""
