"""Exports of Nsight Systems give the same tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl

from dftracer.link import link
from dftracer.link.columns import KERNEL, MEMCPY, OP, RUNTIME
from dftracer.link.nsys import is_nsys, read_nsys

PID, TID = 4242, 4243
THREAD = (1 << 48) | (PID << 24) | TID
PROCESS = (1 << 48) | (PID << 24)
ZERO = 1_794_730_202_000_000_000

# Tables and columns as nsys 2024 exports them; it leaves out tables without rows.
SCHEMA = """
create table StringIds (id integer not null primary key, value text not null);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer, utcTime text, localTime text);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer not null, end integer not null, eventClass
  integer not null, globalTid integer, correlationId integer, nameId integer not null, returnValue
  integer not null, callchainId integer);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer not null, end integer not null, deviceId
  integer not null, contextId integer not null, greenContextId integer, streamId integer not null,
  correlationId integer, globalPid integer, demangledName integer not null, shortName integer not
  null, mangledName integer, gridX integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer not null, end integer not null, deviceId
  integer not null, contextId integer not null, streamId integer not null, correlationId integer,
  globalPid integer, bytes integer not null, copyKind integer not null, srcKind integer, dstKind
  integer);
create table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start integer not null, end integer not null,
  deviceId integer not null, contextId integer not null, streamId integer not null, correlationId
  integer, globalPid integer, syncType integer not null, eventId integer not null);
create table NVTX_EVENTS (start integer not null, end integer, eventType integer not null, rangeId
  integer, category integer, color integer, text text, globalTid integer, endGlobalTid integer, textId
  integer, domainId integer);
create table ThreadNames (nameId integer not null, priority integer, globalTid integer);
"""
STRINGS = {
    1: "cudaLaunchKernel_v7000", 2: "cudaMemcpyAsync_v3020", 3: "cudaStreamSynchronize_v3020",
    4: "void gemm<float>(float*)", 5: "gemm", 6: "aten::mm, seq = 5, op_id = 3", 7: "ncclDevKernel_AllReduce",
    8: "python",
}  # fmt: skip


def export(path: Path) -> Path:
    base = sqlite3.connect(path)
    base.executescript(SCHEMA)
    base.executemany("insert into StringIds values (?, ?)", STRINGS.items())
    base.execute("insert into TARGET_INFO_SESSION_START_TIME values (?, '', '')", (ZERO,))
    runtime = "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 0, ?, ?, ?, 0, null)"
    base.execute(runtime, (1100, 1150, THREAD, 11, 1))
    base.execute(runtime, (1300, 1340, THREAD, 12, 2))
    base.execute(runtime, (1500, 2600, THREAD, 13, 3))
    base.execute(runtime, (2700, 2750, THREAD, 14, 1))
    kernel = "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 1, null, 7, ?, ?, ?, 5, null, 1)"
    base.execute(kernel, (1400, 2200, 11, PROCESS, 4))
    base.execute(kernel, (2800, 2900, 14, PROCESS, 4))
    base.execute(
        "insert into CUPTI_ACTIVITY_KIND_MEMCPY values (2300, 2500, 0, 1, 7, 12, ?, 4096, 1, 0, 0)",
        (PROCESS,),
    )
    base.execute(
        "insert into CUPTI_ACTIVITY_KIND_SYNCHRONIZATION values (1500, 2600, 0, 1, 7, 13, ?, 3, 0)",
        (PROCESS,),
    )
    nvtx = "insert into NVTX_EVENTS values (?, ?, ?, null, null, null, ?, ?, null, ?, 0)"
    base.execute(nvtx, (1000, 1200, 59, None, THREAD, 6))
    base.execute(nvtx, (900, 3000, 59, "compute.forward", THREAD, None))
    base.execute(nvtx, (950, None, 34, "a mark", THREAD, None))
    base.execute("insert into ThreadNames values (8, 1, ?)", (THREAD,))
    base.commit()
    base.close()
    return path


def test_the_same_table_as_from_the_profiler(tmp_path: Path) -> None:
    path = export(tmp_path / "nsys_0.sqlite")
    assert is_nsys(path)
    table = read_nsys(path)
    assert table.main_pid == PID
    assert table.span == (ZERO + 900, ZERO + 3000)
    rows = {
        (int(k), table.names[n]): (int(s) - ZERO, int(d), int(c))
        for k, n, s, d, c in zip(
            table.kind, table.name, table.start, table.dur, table.correlation, strict=True
        )
    }
    assert rows[OP, "aten::mm"][:2] == (1000, 200)
    assert rows[RUNTIME, "cudaMemcpyAsync"] == (1300, 40, 12)
    assert rows[KERNEL, "void gemm<float>(float*)"] == (2800, 100, 14)
    assert rows[MEMCPY, "Memcpy HtoD"] == (2300, 200, 12)
    assert int(table.seq[table.kind == OP][0]) == 5
    assert table.threads == {TID: "python"}


def test_linked_alone(tmp_path: Path) -> None:
    """Kernels under the operator whose range holds the launch; what followed the wait follows the copy."""
    export(tmp_path / "nsys_0.sqlite")
    report = link(tmp_path, tmp_path / "l")
    assert report.ranks[0]["edges"]["launch"] == 3
    frame = pl.read_parquet(tmp_path / "l" / "linked_0.parquet")
    rows = frame.with_columns(pl.col("name", "kind").cast(pl.String)).rows(named=True)
    names = {r["node"]: r["name"] for r in rows}
    first = min((r for r in rows if r["kind"] == "kernel"), key=lambda r: r["start_ns"])
    assert names[first["parent"]] == "aten::mm"
    edges = pl.read_parquet(tmp_path / "l" / "edges_0.parquet").with_columns(pl.col("type").cast(pl.String))
    waits = [(names[r["source"]], names[r["target"]]) for r in edges.rows(named=True) if r["type"] == "sync"]
    assert waits == [("Memcpy HtoD", "cudaLaunchKernel")]
    copy = next(r for r in rows if r["kind"] == "memcpy")
    assert copy["bytes"] == 4096


def test_a_report_that_was_not_exported(tmp_path: Path, ddp: Path) -> None:
    """The command to run is named."""
    (ddp / "nsys_0.nsys-rep").write_bytes(b"x")
    report = link(ddp, tmp_path / "l")
    assert any("nsys export --type sqlite nsys_0.nsys-rep" in w for w in report.warnings)


def test_a_damaged_export_is_told(tmp_path: Path) -> None:
    path = tmp_path / "nsys_0.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    table = read_nsys(path)
    assert len(table) == 0
    assert table.repairs.sentences()
