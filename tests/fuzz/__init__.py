"""Damaged input for every reader: `python -m fuzz --minutes 5`, or a fixed seed in the tests."""
