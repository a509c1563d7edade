"""What a trace is: records, members, file names. All readers and writers use this package.

Nothing in this package imports more than the standard library, so every command can use it. Its native
counterpart is `native/format/`.
"""
