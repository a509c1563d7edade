"""Reading traces: ours and general readers of JSON lines, on the same files in the same run."""
