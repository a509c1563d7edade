"""The native reader of trace files."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, final

# `collections.abc.Buffer` is newer than the oldest Python we run on.
_AnyBuffer: TypeAlias = Any

MISSING: Final[int]

@final
class Buffer:
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Scanner(Iterator[dict[str, Any]]):
    """Rows of one file, a chunk at a time; a column without any value is absent from its chunk."""

    def __new__(
        cls,
        path: str | os.PathLike[str],
        threads: int = 1,
        chunk_text: int = ...,
        *,
        ts: tuple[int, int] | None = None,
        step: tuple[int, int] | None = None,
        epoch: tuple[int, int] | None = None,
        pids: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        cats: Sequence[str] | None = None,
        span: tuple[int, int] | None = None,
        text: bool = False,
        without: Sequence[str] | None = None,
    ) -> Scanner: ...
    def __iter__(self) -> Scanner: ...
    def __next__(self) -> dict[str, Any]: ...
    def dictionary(self, column: str, start: int = 0, /) -> list[str]: ...
    def counts(self) -> dict[str, Any]: ...
    def position(self) -> int: ...

class SelfTime:
    def update(self, id: _AnyBuffer, p_idx: _AnyBuffer, dur: _AnyBuffer, /) -> Buffer: ...

class DurationSums:
    """Events and their self time by pair and duration."""

    def add(
        self, pair: _AnyBuffer, dur: _AnyBuffer, own: _AnyBuffer, n: _AnyBuffer | None = None, /
    ) -> None: ...
    def columns(self) -> tuple[Buffer, Buffer, Buffer, Buffer]: ...

_CallColumns: TypeAlias = tuple[
    tuple[Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer],
    tuple[Buffer, Buffer, Buffer, Buffer, Buffer],
]

class CallSums:
    """Calls by file, kind and size, and over time."""

    def add(self, by_file: tuple[_AnyBuffer, ...], by_time: tuple[_AnyBuffer, ...], /) -> None: ...
    def columns(self) -> _CallColumns: ...

def account(
    start: _AnyBuffer,
    end: _AnyBuffer,
    key: _AnyBuffer,
    keys: int,
    window_start: _AnyBuffer,
    window_end: _AnyBuffer,
    /,
) -> Buffer: ...
def covered_until(start: _AnyBuffer, end: _AnyBuffer, times: _AnyBuffer, /) -> Buffer: ...
def keep_events(
    pair: _AnyBuffer,
    tid: _AnyBuffer,
    ts: _AnyBuffer,
    dur: _AnyBuffer,
    flagged: _AnyBuffer,
    class_of_pair: _AnyBuffer,
    marked: _AnyBuffer,
    skip: int,
    class_of_flagged: int,
    /,
) -> tuple[
    tuple[int, int], tuple[int, int], tuple[Buffer, Buffer, Buffer, Buffer, Buffer], tuple[Buffer, Buffer]
]: ...
def keep_freed_memory() -> None: ...
def pack_intervals(start: _AnyBuffer, end: _AnyBuffer, /) -> bytes: ...
def pieces(
    window_start: _AnyBuffer, window_end: _AnyBuffer, start: _AnyBuffer, end: _AnyBuffer, /
) -> tuple[Buffer, Buffer, Buffer]: ...
def digest_calls(
    pair: _AnyBuffer,
    kind_of_pair: _AnyBuffer,
    counts_items: _AnyBuffer,
    rows: _AnyBuffer | None,
    chunk_rows: int,
    ret: _AnyBuffer | None,
    size: _AnyBuffer | None,
    count: _AnyBuffer | None,
    offset: _AnyBuffer | None,
    file: _AnyBuffer | None,
    ts: _AnyBuffer,
    dur: _AnyBuffer,
    args_end: _AnyBuffer,
    args_text: _AnyBuffer,
    shift: int,
    /,
) -> tuple[Buffer, _CallColumns, tuple[Buffer, Buffer, Buffer]]: ...
def bytes_of_calls(
    pair: _AnyBuffer,
    kind_of_pair: _AnyBuffer,
    counts_items: _AnyBuffer,
    rows: _AnyBuffer | None,
    chunk_rows: int,
    ret: _AnyBuffer | None,
    size: _AnyBuffer | None,
    count: _AnyBuffer | None,
    /,
) -> Buffer: ...
def pair_numbers(
    cat: _AnyBuffer, name: _AnyBuffer, table: _AnyBuffer, width: int, /
) -> tuple[Buffer, Buffer]: ...
def rows_of_pairs(
    pair: _AnyBuffer, wanted: _AnyBuffer, dur: _AnyBuffer | None = None, at_least: int = 0, /
) -> Buffer: ...
def union(
    start: _AnyBuffer, end: _AnyBuffer, key: _AnyBuffer | None = None, wanted: _AnyBuffer | None = None, /
) -> tuple[Buffer, Buffer]: ...
def unpack_intervals(packed: bytes, n: int, /) -> tuple[Buffer, Buffer]: ...
def step_rows(data: _AnyBuffer, /) -> tuple[Buffer, list[str], int]: ...
def pack_step_rows(rows: _AnyBuffer, facts: str, /) -> bytes: ...
def step_row_columns() -> tuple[str, ...]: ...
def event_class(category: str | bytes, name: str | bytes, /) -> int: ...
def stage_rules(automatic: bool, /) -> bytes: ...
def extent(ts: _AnyBuffer, dur: _AnyBuffer, /) -> tuple[int, int, int]: ...
def arg_numbers(ends: _AnyBuffer, text: _AnyBuffer, key: bytes, /) -> Buffer: ...
def arg_texts(ends: _AnyBuffer, text: _AnyBuffer, key: bytes, /) -> tuple[Buffer, list[str]]: ...
def nest(tid: _AnyBuffer, ts: _AnyBuffer, dur: _AnyBuffer, /) -> tuple[Buffer, Buffer]: ...
def pixels(
    start: _AnyBuffer,
    end: _AnyBuffer,
    pair: _AnyBuffer,
    class_of_pair: _AnyBuffer,
    classes: _AnyBuffer,
    sums: _AnyBuffer,
    block: int,
    visible: _AnyBuffer,
    t0: int,
    t1: int,
    width: int,
    steps: int,
    /,
) -> tuple[Buffer, Buffer]: ...
def stack(lane: _AnyBuffer, start: _AnyBuffer, end: _AnyBuffer, slack: int, /) -> Buffer: ...
def timeline(
    ts: _AnyBuffer, dur: _AnyBuffer, cls: _AnyBuffer, rule: _AnyBuffer, stages: int, none: int, /
) -> tuple[Buffer, Buffer, Buffer]: ...
def validity(column: _AnyBuffer, width: int, /) -> tuple[Buffer | None, int]: ...
