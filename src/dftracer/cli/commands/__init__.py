"""Each module here is a verb of the command `dftracer`."""
