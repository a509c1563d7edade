"""DEVICE: what the GPUs did, from events at phase boundaries or from a profiler, and what it means for a run.

`gather` collects both of a process while its trace is read; `summary` has the figures of all ranks.
"""
