"""Helpers of the tests: run a program in a fresh process, read back what it wrote.

Nothing here imports the package under test: a reader of our own could hide a fault of its writer.
"""
