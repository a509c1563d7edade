"""What the manifest says of each window, completed as its files are finished beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dftracer._text import plural
from dftracer.collect import _names
from dftracer.collect._comms import Comms
from dftracer.collect._health import Costs, Health
from dftracer.collect._names import Names
from dftracer.collect._options import Options
from dftracer.collect._plugins import Plugins
from dftracer.collect._recording import Recording
from dftracer.collect._window_files import Finisher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.collect._windows import Window

_WHOLE = 0.998  # part of the operators joined: less is worth a warning


class Entries:
    """One entry per window; `changed` is called when the files of one are finished."""

    def __init__(
        self,
        options: Options,
        health: Health,
        names: Names,
        recording: Recording,
        plugins: Plugins,
        costs: Costs,
    ) -> None:
        self._options = options
        self._health = health
        self._names = names
        self._recording = recording
        self._plugins = plugins
        self._costs = costs
        self._finisher = Finisher(options.finish == "process")
        self.all: list[dict[str, Any]] = []
        self.changed: Callable[[], None] = lambda: None

    def begin(self, index: int, step: int) -> dict[str, Any]:
        """The entry of a window that starts with this step."""
        left_out = {"pfw"} if self._options.wants_et(index) else {"pfw", "et"}
        entry = {
            "index": index,
            "steps": [step, step],
            "start_us": 0.0,
            "end_us": 0.0,
            "kind": "+".join(name for name in self._options.traces if name not in left_out),
            **dict.fromkeys(("et", "kineto", "et_nodes", "joined", "coverage", "name_agreement")),
        }
        self.all.append(entry)
        return entry

    def finish(self, window: Window, prefix: str) -> None:
        """Have the files of the window that ended last made; what is in them is told later."""
        entry = self.all[-1]
        with self._health.guard("finishing"), self._recording.hidden():
            self.settle_rank()
            job = {
                "et": window.et_path if window.has_et else None,
                "kineto": window.kineto_path if window.has_kineto else None,
                "et_out": self._names.trace("torch_et", window.index),
                "kineto_out": self._names.trace("kineto_trace", window.index),
                "compress": self._options.compress,
            }
            self._finisher.submit(job, f"{prefix}.job", lambda result: self._finished(entry, result))
        self.changed()

    def take_finished(self) -> None:
        """Those whose files are finished by now."""
        if self._finisher.pending:
            self._finisher.collect_done()

    def wait_for_all(self) -> None:
        """Until every file is finished."""
        with self._health.guard("finishing"), self._recording.hidden():
            self._finisher.collect_done(wait=True)

    def settle_rank(self, finally_: bool = False) -> None:
        """Files carry the rank as it is known by now; a group made late renames them."""
        rank, world_size, source = _names.place()
        known = self._names.source
        renamed = self._names.settle(rank, world_size, source)
        if finally_:
            renamed = self._names.settle_finally() or renamed
        if renamed:
            for entry in self.all:
                for kind in ("et", "kineto"):
                    if entry[kind]:
                        entry[kind] = self._names.renamed(entry[kind])
        if rank is not None and known == "nobody":
            self._recording.say_rank(rank, self._names.world_size)

    def _finished(self, entry: dict[str, Any], result: dict[str, Any]) -> None:
        for path in result["files"]:
            name = self._names.add(path)
            entry["et" if name.startswith("torch_et") else "kineto"] = name
        self._compare(entry, result)
        if result.get("base_ns"):
            entry["kineto_base_ns"] = result["base_ns"]
        for text in result["notes"]:
            self._health.note(f"window {entry['index']}: {text}")
        self._costs.add("finish_s", result["seconds"])
        self._costs.add("finish_cpu_s", result["cpu_seconds"])
        comms = self._plugins.of(Comms)
        if comms is not None and result.get("comm"):
            with self._health.guard("comms"):
                comms.add_kineto_times(entry, result["comm"], result["base_ns"])
        self.changed()

    def _compare(self, entry: dict[str, Any], result: dict[str, Any]) -> None:
        """How much of the execution trace Kineto has seen too."""
        for key in ("et_nodes", "joined", "kineto_events"):
            entry[key] = result.get(key)
        nodes, joined = entry["et_nodes"], entry["joined"]
        if not nodes or joined is None:
            return
        entry["coverage"] = joined / nodes
        entry["name_agreement"] = joined / result["matched"] if result["matched"] else None
        if entry["coverage"] < _WHOLE:
            whole = plural(nodes, "operator")
            self._health.warn(
                f"window {entry['index']}: {joined} of {whole} of the execution trace are "
                "in Kineto's trace too"
                + ("" if self._options.threads == "all" else "; threads='all' includes other threads")
            )
