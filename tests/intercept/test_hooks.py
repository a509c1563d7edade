"""Optional hooks: object storage and file formats as `data.io` and `checkpoint.io` events."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run


def test_fsspec_local_and_memory(traced: Callable[..., Run]) -> None:
    """open, read, write and close of real fsspec file systems; results unchanged; taken back afterwards."""
    pytest.importorskip("fsspec")
    run = traced(
        """
        import fsspec, os
        from dftracer import hooks
        before = fsspec.spec.AbstractFileSystem.open
        assert hooks.install("fsspec") == ("fsspec",)
        for target in ("memory://bucket/a.bin", "file://" + os.path.abspath("a.bin")):
            with fsspec.open(target, "wb") as f:
                assert f.write(b"12345") == 5
                assert type(f).__module__.startswith("fsspec.implementations."), type(f)
            with fsspec.open(target, "rb") as f: assert f.read(3) == b"123"; assert f.read() == b"45"
            with fsspec.open(target, "r") as f: assert f.read() == "12345"
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/bucket/b", b"xyz"); assert fs.cat_file("/bucket/b") == b"xyz"
        hooks.uninstall()
        assert fsspec.spec.AbstractFileSystem.open is before
        with fsspec.open("memory://bucket/c", "wb") as f: f.write(b"untraced")
        log.finalize()
        """
    )
    events = [e for e in run.trace.events if e.cat == "data"]
    names = [e.name for e in events]
    assert {"data.io.open", "data.io.read", "data.io.write", "data.io.close"} <= set(names)
    written = [e.raw["args"] for e in events if e.name == "data.io.write"]
    assert [w["count"] for w in written if "count" in w] == [5]  # what is written to memory is no I/O
    assert "memory" in {e.raw["args"].get("protocol") for e in events}


def test_file_formats(traced: Callable[..., Run]) -> None:
    """h5py, safetensors and torch: each with the path it read or wrote."""
    for library in ("h5py", "safetensors", "torch"):
        pytest.importorskip(library)
    run = traced(
        """
        import h5py, numpy as np, safetensors.numpy, torch
        from dftracer import hooks
        assert set(hooks.install()) >= {"h5py", "safetensors", "torch"}
        with h5py.File("a.h5", "w") as f: f["x"] = np.arange(10)
        with h5py.File("a.h5") as f: assert f["x"][3] == 3
        safetensors.numpy.save_file({"a": np.ones(3)}, "a.st"); safetensors.numpy.load_file("a.st")
        torch.save({"w": torch.ones(3)}, "a.pt"); torch.load("a.pt")
        log.finalize()
        """,
        forked=True,
    )
    seen = {
        (e.name, e.raw["args"].get("path", "").rsplit(".", 1)[-1])
        for e in run.trace.events
        if ".io." in e.name
    }
    assert {("data.io.open", "h5"), ("data.io.read", "h5")} <= seen
    assert {("checkpoint.io.write", "st"), ("checkpoint.io.read", "st")} <= seen
    assert {("checkpoint.io.write", "pt"), ("checkpoint.io.read", "pt")} <= seen


def test_an_unknown_or_missing_library_is_named(traced: Callable[..., Run]) -> None:
    """The error says what there is."""
    traced(
        """
        from dftracer import hooks
        try: hooks.install("nosuch")
        except ValueError as error: assert "fsspec" in str(error)
        else: raise SystemExit(1)
        log.finalize()
        """
    )
