"""Descriptor numbers that a program frees behind our back and uses again for something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, compile_c, run_traced


def test_what_is_no_file_is_booked_on_none(tmp_path: Path) -> None:
    """Sockets, pipes, timers and received descriptors under the number of a file closed by raw call."""
    program = compile_c(FIXTURES / "reused_numbers.c", tmp_path / "reused")
    small = tmp_path / "small.txt"
    small.write_text("11 bytes...")
    run = run_traced([str(program), str(small)], tmp_path)
    assert run.returncode == 0, run.stderr
    reused = int(run.stdout)
    assert reused == 12
    assert run.names_on(small) == ["open", "read"] * reused


NODE_PROGRAM = """
const fs = require("fs"), net = require("net");
const server = net.createServer(s => s.end(Buffer.alloc(1 << 20)));
server.listen(0, () => {
  const fd = fs.openSync(process.argv[2]);
  fs.readSync(fd, Buffer.alloc(11));
  fs.closeSync(fd);
  let got = 0;
  net.connect(server.address().port).on("data", d => got += d.length).on("end", () => {
    server.close();
    console.log(got);
  });
});
"""


def test_node(tmp_path: Path) -> None:
    """A megabyte of socket traffic after an 11-byte file."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script, small = tmp_path / "program.js", tmp_path / "small.txt"
    script.write_text(NODE_PROGRAM)
    small.write_text("11 bytes...")
    run = run_traced([node, str(script), str(small)], tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{1 << 20}\n"
    moving = {"read", "write", "pread", "readv", "writev"}
    assert sum(int(e.args.get("ret", 0)) for e in run.on(small) if e.name in moving) == 11
