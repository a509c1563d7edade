"""Every setting of the tracer, in one table, and the one reader of the environment.

An explicit argument overrides the environment, which overrides the file named by DFTRACER_CONFIGURATION,
which overrides the default. A mistake prints one line on stderr and the next source applies; nothing raises.

Every program that uses the annotations imports this module, traced or not: it imports only what the
interpreter has loaded anyway (``dataclasses`` or ``typing`` alone would cost more than everything else).
"""

from __future__ import annotations

import os

from dftracer import _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn, TypeAlias

    Names: TypeAlias = tuple[str, ...]

_INT64_MAX = (1 << 63) - 1
_HUGE = 1 << 64  # out of every range


class BadValue(ValueError):
    """What is wrong with a value, as the end of a sentence that begins with the setting."""


class Setting:
    """One row of the table: a setting's name, type, bounds and explanation."""

    __slots__ = (
        "choices",
        "default",
        "doc",
        "env",
        "high",
        "kind",
        "low",
        "name",
        "power_of_two",
        "zero_allowed",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        default: bool | int | str,
        doc: str,
        *,
        low: int = 0,
        high: int = _INT64_MAX,
        power_of_two: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.env = "DFTRACER_" + name.upper()
        self.kind = kind
        self.default = default
        self.doc = doc
        self.low = low
        self.high = high
        self.power_of_two = power_of_two
        self.choices = choices

    def read(self, raw: object) -> bool | int | str:
        """The value that `raw` (text, or a typed value of a file or a call) stands for, or BadValue.

        Texts are read natively (native/session/environment.cpp): the preloaded library begins before Python.
        """
        from dftracer import _core  # noqa: PLC0415 - not where all settings have their defaults

        text = _AS_TEXT[self.kind](raw)
        if self.kind in _PATHS:
            return text
        try:
            return _core.read_setting(self.name, os.fsencode(text), isinstance(raw, int))
        except ValueError as problem:
            raise BadValue(str(problem)) from None


CHOICE_ALIASES = {
    "WARNING": "WARN",
    **dict.fromkeys(("1", "TRUE", "ON", "YES"), "TORCH"),
    **dict.fromkeys(("0", "FALSE", "NO"), "OFF"),
}


def _switch_text(raw: object) -> str:
    return str(int(raw)) if isinstance(raw, bool) else str(raw)


def _number_text(raw: object) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise BadValue("is not a whole number")
    return _of_number(raw)


def _size_text(raw: object) -> str:
    """Bytes: 4096, "64K", "1.5 MiB", "2GB"; a unit is a power of 1024 in every spelling."""
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise BadValue("is not a size")
    return _of_number(raw)


def _of_number(raw: int | str) -> str:
    return raw if isinstance(raw, str) else str(max(-_HUGE, min(raw, _HUGE)))


def _single_text(raw: object) -> str:
    if isinstance(raw, (dict, list, tuple, set)):
        raise BadValue("is not a single value")
    return str(raw)


def _path_text(raw: object) -> str:
    # Paths may begin or end with blanks, and come as pathlib.Path from a call.
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, bytes):
        raw = os.fsdecode(raw)
    if not isinstance(raw, str) or "\0" in raw:
        raise BadValue("is not a path")
    return raw


def _dirs_text(raw: object) -> str:
    if isinstance(raw, (list, tuple)):
        return ":".join(_path_text(each) for each in raw)
    return _path_text(raw)


def _list_text(raw: object) -> str:
    if isinstance(raw, (list, tuple)):
        return ",".join(_path_text(each) for each in raw)
    return _path_text(raw)


# What a value is as text, by the kind of a setting.
_AS_TEXT: dict[str, Callable[[object], str]] = {
    "bool": _switch_text,
    "int": _number_text,
    "size": _size_text,
    "choice": _single_text,
    "text": _single_text,
    "path": _path_text,
    "dirs": _dirs_text,
    "list": _list_text,
}
_PATHS = ("path", "dirs", "list")  # taken as they are

# The order is that of the documentation. The preloaded library has the same table: after a change run
# `python native/generate.py` and `python docs/generate.py`.
SETTINGS: tuple[Setting, ...] = (
    Setting("enable", "bool", False, "Turns tracing on. If off, decorators return the function itself."),
    Setting(
        "init",
        "choice",
        "FUNCTION",
        "FUNCTION: recording begins with `initialize_log`; PRELOAD, HYBRID: with the preloaded library.",
        choices=("FUNCTION", "PRELOAD", "HYBRID"),
    ),
    Setting(
        "log_file",
        "path",
        "./trace",
        "Prefix of the trace files of processes for which `initialize_log` gave no name.",
    ),
    Setting(
        "data_dir",
        "dirs",
        "all",
        "Directories whose I/O is traced, separated by colons (a list in a file), or `all`.",
    ),
    Setting("disable_io", "bool", False, "Do not intercept I/O calls at all."),
    Setting("disable_posix", "bool", False, "Do not intercept POSIX calls (`open`, `read`, `stat` ...)."),
    Setting("disable_stdio", "bool", False, "Do not intercept stdio calls (`fopen`, `fread` ...)."),
    Setting(
        "disable_cuda",
        "bool",
        False,
        "Do not intercept calls of the CUDA runtime and NCCL. Independent of `DFTRACER_DISABLE_IO`.",
    ),
    Setting("inc_metadata", "bool", True, "Arguments on events. Off: only name, category and times."),
    Setting("trace_compression", "bool", True, "Write `.pfw.gz`. Off: plain `.pfw`."),
    Setting("disable_tids", "bool", False, "Write the process id instead of thread ids."),
    Setting("write_buffer_size", "size", 0, "Bytes of text per gzip member; 0 lets the tracer choose."),
    Setting(
        "log_level",
        "choice",
        "ERROR",
        "Which of the tracer's own messages go to stderr. Mistakes in settings are always shown, once.",
        choices=_messages.LEVELS,
    ),
    Setting(
        "bind_signals",
        "bool",
        False,
        "Flush on fatal signals, then call the handler that was there before.",
    ),
    Setting("set_core_affinity", "bool", False, "Record the CPU affinity mask of the process."),
    Setting("configuration", "path", "", "A YAML or TOML file with these settings."),
    Setting(
        "ring_size",
        "size",
        1 << 22,
        "Memory per recording thread, a power of two. Larger rings survive longer disk stalls.",
        low=1 << 16,
        high=1 << 30,
        power_of_two=True,
    ),
    Setting(
        "ring_dir",
        "path",
        "",
        "Where rings are kept; empty lets the tracer choose (/dev/shm/dftracer-<uid>, or next to the trace).",
    ),
    Setting(
        "max_stall_us",
        "int",
        1000,
        "How long, in us, a full ring may hold up the traced call before events are dropped (and counted); "
        "0 drops at once.",
        high=60_000_000,
    ),
    Setting("rotate_size", "size", 0, "Bytes of file after which a new part begins; 0 never rotates."),
    Setting(
        "rotate_keep",
        "int",
        0,
        "How many parts are kept, the oldest are deleted first; 0 keeps all.",
        high=1 << 30,
    ),
    Setting(
        "max_size",
        "size",
        0,
        "Bytes on disk per process over all parts; beyond that, events are dropped and counted. 0: no limit.",
    ),
    Setting(
        "mode",
        "choice",
        "FULL",
        "FULL: keep all detail. BLACKBOX: keep one row per step, and `DFTRACER_BLACKBOX_MB` of detail: the "
        "latest, and around anomalies (`dftracer run --blackbox`).",
        choices=("FULL", "BLACKBOX"),
    ),
    Setting(
        "blackbox_mb",
        "int",
        256,
        "MiB of detail per process in black-box mode, up to half of it for the detail around anomalies.",
        low=1,
        high=1 << 20,
    ),
    Setting(
        "flush_ms",
        "int",
        100,
        "How often, in ms, recorded events are written to disk.",
        low=10,
        high=1000,
    ),
    Setting(
        "time_metric",
        "choice",
        "US",
        "The unit of `get_time()` and of the times given to `log_event()`; the trace itself is in us.",
        choices=("NS", "US", "MS", "SEC"),
    ),
    Setting(
        "counter_ms",
        "int",
        1000,
        "Interval in ms at which process, host and GPUs are sampled as counters; 0: never.",
        high=3_600_000,
    ),
    Setting(
        "enable_aggregation",
        "bool",
        False,
        "Write I/O calls as counts, sums and histograms per call, file and interval instead of one by one.",
    ),
    Setting(
        "aggregation_type",
        "choice",
        "FULL",
        "FULL: aggregate every I/O call; SELECTIVE: aggregate the events that the rules of "
        "DFTRACER_AGGREGATION_FILE select, of any category.",
        choices=("FULL", "SELECTIVE"),
    ),
    Setting(
        "aggregation_file",
        "path",
        "",
        "The rules of SELECTIVE: lists `inclusion` and `exclusion`; without it, `dur < 100` is the rule.",
    ),
    Setting(
        "trace_interval_ms",
        "int",
        1000,
        "Aggregation interval in ms.",
        low=1,
        high=3_600_000,
    ),
    Setting(
        "hang_s",
        "int",
        60,
        "How long, in s, a training program may make no progress before its stacks are written to "
        "`hang_<rank>.json`; three times that in start-up, evaluation and checkpoints; 0: never.",
        high=1_000_000,
    ),
    Setting(
        "device_events",
        "bool",
        True,
        "If torch uses a GPU: put events into its stream at phase boundaries, for the device's time and lag.",
    ),
    Setting(
        "auto",
        "choice",
        "OFF",
        "TORCH (or 1): record training steps without annotations, in every Python process started with this; "
        "needs DFTRACER_ENABLE=1. `dftracer run` sets it. Read only from the environment.",
        choices=("OFF", "TORCH"),
    ),
    Setting(
        "auto_modules",
        "bool",
        False,
        "With automatic tracing: also record the forward pass of every module (`dftracer run --modules`).",
    ),
    Setting(
        "metrics",
        "list",
        "",
        "Where metrics are sent during training, separated by commas: `prometheus:PORT`, "
        "`textfile:PATH`, `otlp:URL`, `tensorboard:DIR`, `wandb`, `mlflow` ([guide](guide-metrics.md)).",
    ),
    Setting(
        "metrics_ms",
        "int",
        5000,
        "How often, in ms, metrics are written; Prometheus scrapes on its own schedule.",
        low=100,
        high=3_600_000,
    ),
    Setting(
        "run_name",
        "text",
        "",
        "The name of the run (`dftracer run --name`): `dftracer runs` shows the trend over runs with this "
        "name, and `dftracer goodput --name` treats them as attempts of one job.",
    ),
    Setting("run_tags", "text", "", "Tags of the run, `key=value,key=value` (`dftracer run --tag`)."),
    Setting(
        "run_git",
        "text",
        "",
        "The commit of the program, followed by `+` if files were changed since, `?` if "
        "unknown. `dftracer run` sets it.",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


class Settings:
    """The resolved settings; one attribute per row of the table; immutable."""

    __slots__ = tuple(_BY_NAME)

    enable: bool
    init: str
    log_file: str
    data_dir: str
    disable_io: bool
    disable_posix: bool
    disable_stdio: bool
    disable_cuda: bool
    inc_metadata: bool
    trace_compression: bool
    disable_tids: bool
    write_buffer_size: int
    log_level: str
    bind_signals: bool
    set_core_affinity: bool
    configuration: str
    ring_size: int
    ring_dir: str
    max_stall_us: int
    rotate_size: int
    rotate_keep: int
    max_size: int
    mode: str
    blackbox_mb: int
    flush_ms: int
    time_metric: str
    counter_ms: int
    enable_aggregation: bool
    aggregation_type: str
    aggregation_file: str
    trace_interval_ms: int
    hang_s: int
    device_events: bool
    auto: str
    auto_modules: bool
    metrics: str
    metrics_ms: int
    run_name: str
    run_tags: str
    run_git: str

    def __init__(self, values: Mapping[str, bool | int | str] | None = None) -> None:
        given = values or {}
        for setting in SETTINGS:
            object.__setattr__(self, setting.name, given.get(setting.name, setting.default))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings are immutable; create new ones to change {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"settings are immutable; {name!r} cannot be deleted")

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.for_core() == other.for_core()

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def for_core(self) -> dict[str, int | str | bool]:
        """What the native recorder is configured with: settings by name, the log level as a number."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["log_level"] = _messages.LEVELS.index(self.log_level)
        return values


def load_settings(environ: Mapping[str, str] | None = None, **explicit: object) -> Settings:
    """Resolve every setting; `explicit` values that are None count as not given."""
    env = os.environ if environ is None else environ
    values: dict[str, bool | int | str] = {}
    mistakes: list[tuple[str, str, Setting]] = []
    notes: list[str] = []

    def take(setting: Setting, raw: object, where: str) -> None:
        if setting.name in values or raw is None or raw == "":
            return
        try:
            values[setting.name] = setting.read(raw)
        except BadValue as problem:
            mistakes.append((where, str(problem), setting))

    for name, raw in explicit.items():
        # A name outside the table is a bug in our own code and may raise.
        take(_BY_NAME[name], raw, f'{name}="{_shown(raw)}"')
    for setting in SETTINGS:
        raw = env.get(setting.env, "")
        take(setting, raw, f'{setting.env}="{_shown(raw)}"')

    # Switched off by the user: the file cannot turn it on and need not be read.
    path = values.get("configuration")
    if path and values.get("enable") is not False:
        from dftracer import _config_file  # noqa: PLC0415 - costs nothing where no file is named

        for key, raw, invert in _config_file.read(str(path), _BY_NAME, _messages.always, notes.append):
            setting = _BY_NAME[key.setting]
            take(setting, _inverted(raw) if invert else raw, f'{key.shown}="{_shown(raw)}" in {path}')

    settings = Settings(values)
    _messages.set_level(settings.log_level)
    for note in notes:
        _messages.warn(note)
    for where, problem, setting in mistakes:
        _messages.always(f"{where} {problem}; using {_as_text(getattr(settings, setting.name))}")
    return settings


# --- Which rank of a distributed job this process is, from what launchers leave in the environment


# (launcher, rank, local rank, world size, job); the first whose rank is set wins. Slurm comes last because
# its variables are also set, all 0, in a batch script that starts the ranks by other means.
# `job`: variables that identify one start of the launcher; the first group that is completely set is used.
# Without one, the process that started the ranks identifies it.
# The preloaded library has the same table: after a change run `python native/generate.py`.
LAUNCHERS: tuple[tuple[str, Names, Names, Names, tuple[Names, ...]], ...] = (
    ("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",), (("TORCHELASTIC_RUN_ID",),)),
    (
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        (("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ),
    (
        "pmix",
        ("PMIX_RANK",),
        ("PMIX_LOCAL_RANK", "SLURM_LOCALID"),
        ("PMIX_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",)),
    ),
    (
        "pmi",
        ("PMI_RANK",),
        ("PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"),
        ("PMI_SIZE",),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PALS_APID",), ("PMI_JOBID",)),
    ),
    (
        "mvapich2",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("MPIRUN_ID",)),
    ),
    ("flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",), (("FLUX_JOB_ID",),)),
    (
        "jsm",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        (("PMIX_NAMESPACE",), ("LSB_JOBID",)),
    ),
    ("pals", ("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_SIZE", "PMI_SIZE"), (("PALS_APID",),)),
    (
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("SLURM_JOB_ID",)),
    ),
)


class RankInfo:
    """A process's place in its job; None if the launcher does not say."""

    __slots__ = ("local_rank", "rank", "source", "world_size")

    def __init__(
        self, rank: int | None, local_rank: int | None, world_size: int | None, source: str | None
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.source = source

    def _key(self) -> tuple[int | None, int | None, int | None, str | None]:
        return self.rank, self.local_rank, self.world_size, self.source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankInfo) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        rank, local_rank, world_size, source = self._key()
        return f"RankInfo(rank={rank}, local_rank={local_rank}, world_size={world_size}, source={source!r})"


def rank_info(environ: dict[str, str] | None = None) -> RankInfo:
    """This process's rank according to its launcher, or that of a process with another environment.

    It is of the first launcher in the list that set one, read natively as settings are.
    """
    from dftracer import _core  # noqa: PLC0415 - needed with tracing on only

    return RankInfo(*_core.rank(environ))


# --- Switching tracing on and off in the environment


def turn_on() -> str | None:
    """Turn tracing on in this process, if it has not read its settings yet, and in its children; returns what
    the environment said before.
    """
    before = os.environ.get("DFTRACER_ENABLE")
    os.environ["DFTRACER_ENABLE"] = "1"
    return before


def read_switch(text: str) -> bool:
    """What a text means as a switch, as in DFTRACER_ENABLE, or BadValue."""
    return bool(_BY_NAME["enable"].read(text))


def set_data_dir(directories: object) -> str | None:
    """Trace these directories, also in processes started from now on; None if there are none."""
    try:
        text = str(_BY_NAME["data_dir"].read(directories))
    except BadValue as problem:
        _messages.always(f'data_dir="{_shown(directories)}" {problem}')
        return None
    os.environ["DFTRACER_DATA_DIR"] = text
    return text


def tracing_refused() -> bool:
    """Whether tracing was explicitly refused, or this is not the first of several ranks."""
    if "DFTRACER_ENABLE" in os.environ or os.environ.get("DFTRACER_CONFIGURATION"):
        return True
    ours = rank_info()
    return bool(ours.rank or ours.local_rank)


def restore_enable(before: str | None) -> None:
    """Restore DFTRACER_ENABLE, for processes started from now on."""
    if before is None:
        os.environ.pop("DFTRACER_ENABLE", None)
    else:
        os.environ["DFTRACER_ENABLE"] = before


def switched_on_since() -> bool:
    """Whether a process that was imported with tracing off would now have it on."""
    raw = os.environ.get("DFTRACER_ENABLE", "")
    if not raw:
        return bool(os.environ.get("DFTRACER_CONFIGURATION")) and load_settings().enable
    try:
        return bool(_BY_NAME["enable"].read(raw))
    except BadValue:
        return False


def _inverted(raw: object) -> object:
    try:
        return not _BY_NAME["enable"].read(raw)
    except BadValue:
        return raw


def _shown(raw: object) -> str:
    try:
        text = str(raw)
    except Exception:
        text = f"<{type(raw).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def _as_text(value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if value != "" else "the automatic choice"
