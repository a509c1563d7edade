"""Notebooks: `%load_ext dftracer`, then `%%dftracer` above a cell shows where its time went."""

from __future__ import annotations

import argparse
import importlib
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dftracer
from dftracer import _core

if TYPE_CHECKING:
    from dftracer.analyze import Analysis

_USAGE = """\
%%dftracer [-o DIR] [--no-auto] [--text]

Run the cell under the tracer and show the report below it.

  -o DIR       keep the trace in this directory (default: it is removed after the report)
  --no-auto    record only the training steps you annotate yourself (default: PyTorch's steps are recorded)
  --text       the report as plain text (default: HTML, with the text for terminals)
"""


class _Refused(Exception):
    """The line of the magic cannot be read."""


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise _Refused(message)


def _options(line: str) -> argparse.Namespace:
    parser = _Options(add_help=False)
    parser.add_argument("-o", "--output")
    parser.add_argument("--no-auto", action="store_true")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser.parse_args(shlex.split(line))


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext dftracer`."""

    def magic(line: str, cell: str) -> None:
        try:
            options = _options(line)
        except (_Refused, ValueError) as problem:
            print(f"%%dftracer: {problem}\n\n{_USAGE}", file=sys.stderr)
            return
        if options.help:
            print(_USAGE)
            return
        _run(shell, cell, options)

    magic.__doc__ = _USAGE
    shell.register_magic_function(magic, "cell", "dftracer")


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext dftracer`."""
    shell.magics_manager.magics["cell"].pop("dftracer", None)


def _run(shell: Any, cell: str, options: argparse.Namespace) -> None:
    if _core.active():
        print(
            f"%%dftracer: already recording into {_core.trace_path()}: dftracer.stop() ends that",
            file=sys.stderr,
        )
        shell.run_cell(cell)
        return
    kept = options.output is not None
    folder = Path(options.output) if kept else Path(tempfile.mkdtemp(prefix="dftracer-cell-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        dftracer.start(folder / "cell.pfw", auto=not options.no_auto)
        try:
            # A cell that fails shows its error as any other does; its report comes below it.
            shell.run_cell(cell)
        finally:
            files = dftracer.stop()
        _show(files, options, str(folder) if kept else None)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _show(files: list[str], options: argparse.Namespace, kept: str | None) -> None:
    if not files:
        print("dftracer: nothing was recorded in this cell", file=sys.stderr)
        return
    try:
        from dftracer.analyze import analyze  # noqa: PLC0415 - needs the extra `analysis`
    except ImportError as problem:
        print(f"dftracer: {problem}; the trace is in {Path(files[0]).parent}", file=sys.stderr)
        return
    analysis = analyze(files)
    if options.text:
        print(text_of(analysis))
    else:
        importlib.import_module("IPython.display").display(analysis)
    if kept is not None:
        print(f"trace: {kept}")


def text_of(analysis: Analysis) -> str:
    """The report of the terminal as text."""
    import io  # noqa: PLC0415

    from dftracer._console import safe_console  # noqa: PLC0415
    from dftracer.report import print_report  # noqa: PLC0415

    out = io.StringIO()
    print_report(analysis, safe_console(file=out, width=100))
    return out.getvalue()
