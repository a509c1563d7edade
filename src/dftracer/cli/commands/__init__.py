"""Each module here is a verb of the `dftracer` command."""
