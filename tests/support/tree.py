"""The nesting of events, as `p_idx` and `level` tell it, checked against their times."""

from __future__ import annotations

from .trace import Record, Trace, TraceFile

__all__ = ["assert_nested", "children", "parent", "path"]


def _file_of(trace: Trace, event: Record) -> TraceFile:
    files = [
        f for f in trace if f.records and f.records[0].pid == event.pid and f.by_id.get(event.id) == event
    ]
    assert len(files) == 1, f"{event.name} is in {len(files)} files"
    return files[0]


def parent(trace: Trace, event: Record) -> Record | None:
    """The event that encloses this one; None at the top."""
    if event.parent_id == -1:
        return None
    found = _file_of(trace, event).by_id.get(event.parent_id)
    assert found is not None, f"{event.name}: nobody has the id {event.parent_id}"
    return found


def children(trace: Trace, event: Record) -> list[Record]:
    """The events directly inside this one, by start."""
    return _file_of(trace, event).children.get(event.id, [])


def path(trace: Trace, event: Record) -> list[str]:
    """Names from the outermost event to this one."""
    names = [event.name]
    above = parent(trace, event)
    while above is not None:
        names.append(above.name)
        above = parent(trace, above)
    return names[::-1]


def assert_nested(trace: Trace) -> None:
    """Each event lies within its parent, in time and on its thread, one level below it."""
    for file in trace:
        for event in file.events:
            if event.parent_id == -1:
                assert event.level == 1, event.line
                continue
            assert event.parent_id in file.by_id, f"{event.name}: nobody has the id {event.parent_id}"
            above = file.by_id[event.parent_id]
            assert event.level == above.level + 1, (above.line, event.line)
            assert event.tid == above.tid, (above.line, event.line)
            assert above.ts <= event.ts, (above.line, event.line)
            assert event.end <= above.end, (above.line, event.line)
