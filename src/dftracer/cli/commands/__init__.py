"""The verbs of the `dftracer` command; `dftracer.cli.main` says which module has which."""
