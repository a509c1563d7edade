"""MAP: the trace files of one process to a small partial result; nothing here looks at another process.

In order: `digest` reads chunks of events; `steps` finds the training in them, `threads` their exclusive
timelines, `own_code` what the program itself did; `account` says where the time went; `partial` puts all of
it together, and `step_rows` does so where the events are gone. `memory` bounds what grows with the trace.
"""
