"""What a traced I/O call costs, against no tracer and against the rival."""
