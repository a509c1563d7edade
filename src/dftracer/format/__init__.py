"""What a trace is: records, members, names of files. Whoever reads or writes one asks here.

Nothing in this package imports more than the standard library, so every command can use it. The native
half of the same knowledge is `native/format/`.
"""
