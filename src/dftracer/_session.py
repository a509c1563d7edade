"""The session of this process: when it begins and ends, its name, who joins it, and what precedes its end."""

from __future__ import annotations

import atexit
import os
import sys
import time

import dftracer
from dftracer import _config, _core, _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType, TracebackType

SETTINGS = _config.load_settings()

_joined = False  # ready to join a parent's session; `begin` may still give it its own name


_written_facts: dict[str, str] = {}


def _rank_facts() -> dict[str, str]:
    rank = _config.rank_info()
    return {
        key: str(value)
        for key, value in (
            ("rank", rank.rank),
            ("local_rank", rank.local_rank),
            ("world_size", rank.world_size),
            ("launcher", rank.source),
        )
        if value is not None
    }


def _write_late_rank() -> None:
    """A process that a program forks or spawns as a rank of its own job gets its number after its start."""
    facts = _rank_facts()
    for key, value in facts.items():
        if "rank" not in _written_facts:
            _core.log_metadata("PR", key, value)
    _written_facts.update(facts)


def _configure(prefix: str | None = None) -> None:
    facts = _rank_facts()
    _written_facts.update(facts)
    settings: dict[str, object] = {
        **SETTINGS.for_core(),
        "version": dftracer.__version__,
        "facts": facts,
        "import_dirs": [entry or os.curdir for entry in sys.path if isinstance(entry, str)],
    }
    if prefix:
        settings["log_file"] = prefix
    _core.configure(settings)


def is_multiprocessing_child() -> bool:
    """Whether a process of multiprocessing started this one."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def at_child_exit(function: Callable[[], object], priority: int) -> None:
    """Call it when this process exits, if that is a child of multiprocessing: those run no `atexit` handlers."""
    if is_multiprocessing_child():
        from multiprocessing import util  # noqa: PLC0415 - such a process has loaded it

        util.Finalize(None, function, exitpriority=priority)


def _join() -> None:
    """Record from the start in a process that a recording one has started."""
    from dftracer import _inherited  # noqa: PLC0415 - with tracing on only

    global _joined  # noqa: PLW0603 - one session per process
    prefix = _inherited.announced_session()
    _configure(prefix)
    if _core.active():
        _joined = True  # the preloaded library has begun already
    elif prefix or is_multiprocessing_child():
        _joined = _core.initialize(None)
    # Also before there is a session: the processes started from here are all of one run.
    _inherited.announce_run(_core.run_id())
    if _joined:
        _watch_device()
        _watch_for_hangs()


def _name_device() -> None:
    if not SETTINGS.device_events and "torch" in sys.modules:
        from dftracer.torch import device  # noqa: PLC0415 - only where torch is in use

        device.name_devices()


def _watch_device() -> None:
    if SETTINGS.device_events:
        from dftracer.torch import device  # noqa: PLC0415 - only where something is recorded

        device.watch()


def _watch_for_hangs() -> None:
    """Watch ranks that may wait for each other."""
    if SETTINGS.hang_s:
        from dftracer.torch import patches  # noqa: PLC0415 - only where something is recorded

        patches.when_imported("torch.distributed.distributed_c10d", _watch_ranks)


def _watch_ranks(groups: ModuleType) -> None:
    from dftracer.torch import hang  # noqa: PLC0415 - only where torch is in use

    hang.watch(groups, by_hand=True)


def arm() -> None:
    """Record from now on under the default name, unless that has begun; `begin` may still give another."""
    global _joined  # noqa: PLW0603
    if SETTINGS.enable and not _core.active():
        begin()
        _joined = True


def begin(path: str | os.PathLike[str] | None = None, data_dir: object = None) -> None:
    """Record from now on, into `path`, with the I/O of `data_dir`. A second call changes nothing."""
    global _joined  # noqa: PLW0603
    if not SETTINGS.enable:
        _hint_that_it_is_off()
        return
    name: str | None = None
    if path is not None:
        try:
            name = os.fsdecode(path) or None
        except TypeError:
            _messages.error(f"initialize_log: {path!r} is not a file name; using {SETTINGS.log_file}")
    name = _local(name)
    if data_dir is not None and (_joined or not _core.active()):
        # Children that do not fork from here read it from the environment.
        directories = _config.set_data_dir(data_dir)
        if directories is not None:
            _core.set_data_dir(directories)
    if _core.active():
        if _joined and name is not None:
            _core.rename(name)
        _joined = False
    else:
        _core.initialize(name)
        _joined = False
    _write_late_rank()
    from dftracer import _inherited  # noqa: PLC0415 - with tracing on only

    stem = _stem(name)
    _inherited.announce_session(stem)
    _inherited.announce_run(_core.run_id(), _core.given_names(name) if name is not None else None)
    if name is not None and stem is not None:
        _inherited.report_stem(stem)
    _watch_device()
    _watch_for_hangs()
    if SETTINGS.metrics and not _is_automatic():  # which knows who trains
        from dftracer import metrics  # noqa: PLC0415 - for those who ask for it

        metrics.training_begins()


def _is_automatic() -> bool:
    auto = sys.modules.get("dftracer.auto")
    return auto is not None and auto.installed()


def _local(name: str | None) -> str | None:
    """The name of a trace on this machine; one that is meant for a store waits here until it is sent."""
    url = SETTINGS.log_file if name is None else name
    if "://" not in url:
        return name
    spooled = _core.spool_path(url)
    from dftracer import _inherited  # noqa: PLC0415 - with tracing on only

    if spooled != url and not _inherited.announced_session() and not _config.rank_info().rank:
        folder, target = os.path.dirname(spooled), url.rpartition("/")[0]
        _messages.always(f"the traces are still in {folder}; dftracer ship {folder} {target} sends them")
    return name if name is None else spooled


def _hint_that_it_is_off() -> None:
    """Tell an interactive user that the program wants to record but does not, unless tracing was refused.

    Nothing is added to the logs of programs that run unattended.
    """
    if _config.switched_on_since():
        _messages.always(
            "tracing was switched on after dftracer had been imported; nothing is recorded "
            "(set DFTRACER_ENABLE=1 before the program starts, or call dftracer.start())"
        )
    elif _is_interactive() and not _config.tracing_refused() and not is_multiprocessing_child():
        _messages.always(
            "tracing is off, nothing is recorded: set DFTRACER_ENABLE=1 before the program starts, "
            "or call dftracer.start(); DFTRACER_ENABLE=0 hides this line"
        )


def _is_interactive() -> bool:
    if hasattr(sys, "ps1"):  # an interactive interpreter, a notebook
        return True
    try:
        return sys.stderr.isatty()
    except Exception:  # the program may have replaced it with anything
        return False


def switch_on() -> None:
    """Switch tracing on in this process and in those it starts, as if it had always been on for everything
    that was imported, decorated or looped over before.
    """
    global SETTINGS  # noqa: PLW0603 - one session per process
    if SETTINGS.enable:
        return
    _config.turn_on()
    SETTINGS = _config.load_settings(enable=True)
    before_finalize(note_exception)
    before_finalize(_core.wait_for_gloo_threads)
    _configure()
    from dftracer import _inherited  # noqa: PLC0415 - with tracing on only

    _inherited.announce_run(_core.run_id())
    if "dftracer.python" in sys.modules:
        from dftracer.python import _decorate  # noqa: PLC0415

        _decorate.activate()


def _stem(given: str | None) -> str | None:
    """The prefix of the trace names of processes started from here."""
    path = _core.trace_path() if given is None else os.path.abspath(given)
    for suffix in (".gz", ".pfw"):
        if path is not None:
            path = path.removesuffix(suffix)
    return path


def end() -> None:
    """Write everything and close the trace."""
    if SETTINGS.enable:
        from dftracer import _inherited  # noqa: PLC0415

        run_before_finalize()
        _name_device()
        _inherited.announce_session(None)
        _core.finalize()


# --- `dftracer.start()` and `dftracer.stop()`: tracing at run time, without a variable in the environment

_enable_before: list[str | None] = []
_auto_before: list[bool] = []
_since_ns = 0


def start(
    log_file: str | os.PathLike[str] | None = None, data_dir: str | None = None, *, auto: bool = False
) -> str | None:
    """Record from now on, whatever the environment says, and return the path of the trace.

    Annotations that were imported, decorated or looped over before are recorded from now on, too. With
    `auto`, the steps of PyTorch programs are recorded without annotations. If a session is already open,
    nothing changes.
    """
    global _since_ns  # noqa: PLW0603 - one session per process
    if _core.active():
        _messages.always(f"already recording into {_core.trace_path()}; dftracer.stop() ends that")
        return _core.trace_path()
    _enable_before.append(os.environ.get("DFTRACER_ENABLE"))
    _since_ns = time.time_ns()
    _config.turn_on()
    switch_on()
    if auto:
        _auto_before.append(_auto().installed())
        _auto().watch()
    begin(log_file, data_dir)
    return _core.trace_path()


def stop() -> list[str]:
    """End what `start` (or `initialize_log`) began; return the traces of this process and its children."""
    if not _core.active():
        return []
    if _auto_before and not _auto_before.pop():
        _auto().uninstall()
    path = _core.trace_path()
    end()
    if _enable_before:
        _config.restore_enable(_enable_before.pop())
    return [] if path is None else _written(path)


def _auto() -> ModuleType:
    from dftracer import auto  # noqa: PLC0415 - for those who ask for it

    return auto


def _written(path: str) -> list[str]:
    """The trace, and later ones that begin with its name: those of processes started in between."""
    folder, name = os.path.split(path)
    stem = name.removesuffix(".gz").removesuffix(".pfw")
    try:
        found = [
            entry.path
            for entry in os.scandir(folder or os.curdir)
            if entry.name.startswith((f"{stem}.", f"{stem}-"))
            and entry.name.endswith((".pfw", ".pfw.gz"))
            and entry.stat().st_mtime_ns >= _since_ns - 1_000_000_000
        ]
    except OSError:
        found = []
    return sorted(found, key=lambda p: (p != path, p))


# --- Work to finish before the trace ends (threads still writing, late results), and what made it end

_LONGEST_TEXT = 500
_hooks: list[Callable[[], None]] = []


def before_finalize(hook: Callable[[], None]) -> None:
    """Call `hook` at the start of every `finalize()`, and when the interpreter ends without one."""
    if not _hooks:
        atexit.register(run_before_finalize)
    _hooks.append(hook)


def run_before_finalize() -> None:
    """Run all hooks; a failing one stops neither the others nor the program."""
    for hook in tuple(_hooks):
        try:
            hook()
        except Exception as error:
            _messages.error(f"before the end of the trace: {type(error).__name__}: {error}")


def note_exception() -> None:
    """Record the exception that ends the process, as a fact about it: what, and where in the user's code.

    The interpreter keeps what it has printed (`sys.last_value`), whatever hooks the program has. A process of
    multiprocessing, which prints it itself, has it in flight while it ends.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):  # torch.multiprocessing leaves with it once it has passed the error on
        error = error.__context__
    if error is None or isinstance(error, SystemExit) or hasattr(sys, "ps1") or not _core.stats()["rings"]:
        return
    _core.log_metadata("PR", "exception", type(error).__name__)
    _core.log_metadata("PR", "exception_us", str(_core.time_ns() // 1000))
    text, line = describe_exception(error)
    if text:
        _core.log_metadata("PR", "exception_text", text)
    if line:
        _core.log_metadata("PR", "exception_at", line)


def describe_exception(error: BaseException) -> tuple[str, str]:
    """What an exception says, on one line, and the line of the program it comes from."""
    text, line = _passed_on(error) or (_text_of(error), _line_of_traceback(error.__traceback__))
    return text[:_LONGEST_TEXT], line


def _text_of(error: BaseException) -> str:
    """What it says, on one line; nothing if only the program's own code could tell."""
    own = type(error).__str__ not in (BaseException.__str__, OSError.__str__, KeyError.__str__)
    if own or not all(type(each) in (str, int, float, type(None)) for each in error.args):
        return ""
    return " ".join(str(error).split())


def _passed_on(error: BaseException) -> tuple[str, str] | None:
    """For an error that torch passes on from a loader worker: its text and line, from the traceback inside.

    The line that asked for the batch explains nothing.
    """
    message = error.args[0] if error.args else None
    if not isinstance(message, str):
        return None
    caught, original, traceback = str.__str__(message).partition(
        ".\nOriginal Traceback (most recent call last):\n"
    )
    if not original or not caught.startswith("Caught "):
        return None
    import re  # noqa: PLC0415 - only a program that fails needs it

    frames = list(re.finditer(r'^  File "(.+)", line (\d+).*\n', traceback, re.MULTILINE))
    after = traceback[frames[-1].end() :] if frames else traceback
    last = [line for line in after.splitlines() if not line.startswith(" ")]
    text = " ".join(" ".join(last).partition(": ")[2].split())
    where = caught.removeprefix("Caught ").partition(" ")[2]
    return f"{text} ({where})".strip(), _innermost_program_line((f[1], int(f[2])) for f in frames)


def _line_of_traceback(traceback: TracebackType | None) -> str:
    lines = []
    while traceback is not None:
        lines.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _innermost_program_line(lines)


def _innermost_program_line(lines: Iterable[tuple[str, int]]) -> str:
    """The innermost line of the program itself, otherwise the innermost of all."""
    last = own = ""
    packages = (p for p in sys.path if p.endswith("-packages"))
    libraries = tuple({os.path.dirname(os.__file__), os.path.dirname(dftracer.__file__), *packages})
    for file, number in lines:
        last = f"{file}:{number}"
        if not file.startswith(("<", *libraries)):
            own = last
    return own or last


if SETTINGS.enable:
    before_finalize(note_exception)
    before_finalize(_core.wait_for_gloo_threads)
    _join()
else:
    _core.configure({"enable": False})
