"""Plug-ins: each adds its own metric file to a collection, and its failures affect no other."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dftracer.collect._collection import Health
from dftracer.collect._names import Names

# --- The protocol


@dataclass
class Context:
    """What a plug-in may know of the collection it belongs to."""

    directory: str
    torch: Any
    time_ns: Callable[[], int]
    warn: Callable[[str], None]
    compress: bool


class Plugin:
    """Override what you need. A method that raises switches this plug-in off; training goes on.

    `finish` returns what is written: a mapping or list becomes `<name>_<rank>.json[.gz]`, any other iterable
    `<name>_<rank>.jsonl[.gz]` with one record a line, None writes nothing.
    """

    name = "plugin"

    def start(self, context: Context) -> None:
        """The collection begins."""

    def window_start(self, index: int, step: int) -> None:
        """A window begins with this step."""

    def window_end(self, index: int, step: int) -> None:
        """A window has ended with this step."""

    def step(self, step: int) -> None:
        """A step has ended."""

    def finish(self) -> Mapping[str, Any] | list[Any] | Iterable[Any] | None:
        """The collection ends: what to write."""
        return None


def write_output(stem: str, content: Any, compress: bool) -> str:
    """Write what `finish` returned; returns the path of the file."""
    whole = isinstance(content, (Mapping, list, tuple, str, int, float))
    path = stem + (".json" if whole else ".jsonl") + (".gz" if compress else "")
    part = path + ".part"
    with open(part, "wb") as raw:
        packed = gzip.GzipFile("", "wb", 5, raw) if compress else raw
        for record in [content] if whole else content:
            packed.write(json.dumps(record, default=str).encode() + b"\n")
        if packed is not raw:
            packed.close()
    os.replace(part, path)
    return path


# --- Samples of memory and of NVML's counters

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIMIT = 1_000_000  # samples kept; a run of weeks must not fill the memory it measures


class _Sampler(Plugin):
    """One sample at each step, and one every `interval_s` inside windows."""

    interval_s = 0.05

    def __init__(self) -> None:
        self._samples: list[dict[str, Any]] = []
        self._stop: threading.Event | None = None
        self._step = 0
        self._time_ns: Callable[[], int] = int

    def start(self, context: Context) -> None:
        self._time_ns = context.time_ns

    def values(self) -> dict[str, Any]:
        """What is measured now."""
        raise NotImplementedError

    def sample(self) -> None:
        """Take one."""
        if len(self._samples) < _LIMIT:
            self._samples.append({"us": self._time_ns() / 1000, "step": self._step, **self.values()})

    def step(self, step: int) -> None:
        self._step = step + 1
        self.sample()

    def window_start(self, index: int, step: int) -> None:
        self._step = step
        self._stop = threading.Event()
        threading.Thread(
            target=self._run, args=(self._stop,), name=f"dftracer-{self.name}", daemon=True
        ).start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self.interval_s):
            try:
                self.sample()
            except Exception:  # a device that went away; the steps' own samples will say so
                return

    def window_end(self, index: int, step: int) -> None:
        if self._stop is not None:
            self._stop.set()

    def finish(self) -> dict[str, Any] | None:
        self.window_end(0, 0)
        return {"interval_s": self.interval_s, "samples": self._samples} if self._samples else None


class Memory(_Sampler):
    """Resident memory of the process; allocated, reserved and peak memory of its CUDA device."""

    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._cuda: Any = None
        self._statm = -1

    def start(self, context: Context) -> None:
        super().start(context)
        self._cuda = context.torch.cuda if context.torch.cuda.is_available() else None
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self.sample()

    def values(self) -> dict[str, Any]:
        fields = os.pread(self._statm, 128, 0).split()
        values: dict[str, Any] = {"rss": int(fields[1]) * _PAGE}
        # Asking a device that nothing has used yet would wake it.
        if self._cuda is not None and self._cuda.is_initialized():
            device = self._cuda.current_device()
            stats = self._cuda.memory_stats(device)
            for word in ("allocated", "reserved"):
                values[f"{word}_{device}"] = stats.get(f"{word}_bytes.all.current", 0)
                values[f"{word}_peak_{device}"] = stats.get(f"{word}_bytes.all.peak", 0)
        return values

    def finish(self) -> dict[str, Any] | None:
        self.sample()
        content = super().finish()
        os.close(self._statm)
        return content


class Nvml(_Sampler):
    """Utilisation, memory, power, clock, temperature and PCIe traffic, where nvidia-ml-py is installed."""

    name = "nvml"

    def __init__(self) -> None:
        super().__init__()
        self._nvml: Any = None
        self._devices: list[Any] = []

    def start(self, context: Context) -> None:
        super().start(context)
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # no package, no driver, no device: nothing to sample, nothing to say
            return
        self._nvml = nvml
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def window_start(self, index: int, step: int) -> None:
        if self._devices:
            super().window_start(index, step)

    def step(self, step: int) -> None:
        self._step = step + 1  # NVML takes milliseconds: never in the training thread

    def values(self) -> dict[str, Any]:
        nvml, out = self._nvml, {}
        for number, device in enumerate(self._devices):
            for key, read in (
                ("gpu_percent", lambda d: nvml.nvmlDeviceGetUtilizationRates(d).gpu),
                ("memory_used", lambda d: nvml.nvmlDeviceGetMemoryInfo(d).used),
                ("power_mw", nvml.nvmlDeviceGetPowerUsage),
                ("sm_mhz", lambda d: nvml.nvmlDeviceGetClockInfo(d, nvml.NVML_CLOCK_SM)),
                ("celsius", lambda d: nvml.nvmlDeviceGetTemperature(d, nvml.NVML_TEMPERATURE_GPU)),
                ("pcie_tx_kbs", lambda d: nvml.nvmlDeviceGetPcieThroughput(d, nvml.NVML_PCIE_UTIL_TX_BYTES)),
                ("pcie_rx_kbs", lambda d: nvml.nvmlDeviceGetPcieThroughput(d, nvml.NVML_PCIE_UTIL_RX_BYTES)),
            ):
                try:
                    out[f"{key}_{number}"] = read(device)
                except Exception:  # a counter this device does not have is not in the file
                    continue
        return out


# --- All of them

_T = TypeVar("_T")


def _built_in() -> dict[str, Callable[[], Plugin]]:
    from dftracer.collect._comms import Comms  # noqa: PLC0415 - a plug-in itself

    return {"comms": Comms, "memory": Memory, "nvml": Nvml}


class Plugins:
    """Calls every plug-in that still works."""

    def __init__(self, wanted: Iterable[Any], context: Context, health: Health) -> None:
        self._health = health
        self._compress = context.compress
        self._all: list[Any] = []
        built_in = _built_in()
        for each in wanted:
            if isinstance(each, str) and each not in built_in:
                health.warn(f"unknown plug-in {each!r}; available: {', '.join(built_in)}")
                continue
            plugin = built_in[each]() if isinstance(each, str) else each
            self._all.append(plugin)
            self._call(plugin, "start", context)

    def of(self, kind: type[_T]) -> _T | None:
        """The plug-in of this class, if there is one and it works."""
        for plugin in self._all:
            if isinstance(plugin, kind):
                return plugin
        return None

    def _part(self, plugin: Any) -> str:
        return f"plug-in {getattr(plugin, 'name', type(plugin).__name__)}"

    def _call(self, plugin: Any, method: str, *args: Any) -> Any:
        if self._health.works(self._part(plugin)):
            with self._health.guard(self._part(plugin)):
                return getattr(plugin, method)(*args)
        return None

    def step(self, step: int) -> None:
        """A step has ended."""
        for plugin in self._all:
            self._call(plugin, "step", step)

    def window_start(self, index: int, step: int) -> None:
        """A window begins."""
        for plugin in self._all:
            self._call(plugin, "window_start", index, step)

    def window_end(self, index: int, step: int) -> None:
        """A window has ended."""
        for plugin in self._all:
            self._call(plugin, "window_end", index, step)

    def finish(self, names: Names) -> list[str]:
        """The files of all plug-ins."""
        paths = []
        for plugin in self._all:
            content = self._call(plugin, "finish")
            if content is not None:
                with self._health.guard(self._part(plugin)):
                    paths.append(write_output(names.stem(plugin.name), content, self._compress))
        return paths
