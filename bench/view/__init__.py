"""How fast `dftracer view` is."""
