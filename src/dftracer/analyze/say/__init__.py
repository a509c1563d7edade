"""SAY: the verdict in three lines, what to try, and what each kind of finding means."""
