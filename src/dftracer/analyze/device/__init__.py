"""DEVICE: what GPUs did. `profiler_rows` reads it, `busy_time` accounts for it, `summary` has all ranks."""
