"""What the verdict says if there are device figures."""

from __future__ import annotations

from dftracer._units import plural
from dftracer.analyze.device_account import DeviceAccount
from dftracer.analyze.device_bound import DeviceShares, device_shares
from dftracer.analyze.job import Rank
from dftracer.analyze.thresholds import MAJORITY
from dftracer.analyze.wording import input_words, stage_words

__all__ = ["device_advice", "device_reason", "device_verdict", "host_whereabouts"]

_TRY = {
    "device": "Give it less to do: lower precision (bf16, fp8), torch.compile to fuse small kernels, a better"
    " kernel for the ones on top.",
    "host": "Launch less and earlier: torch.compile or CUDA graphs, a larger batch, no .item() or print in"
    " the loop.",
    "dependency": "Look at what the streams wait for: fewer events and synchronisations between them.",
    "unseen": "Use a torch DataLoader or annotate the loop (ai.dataloader.fetch.iter), so that waiting for"
    " data can be told apart from Python.",
}
_WAITS = {
    "comm": "while the host communicates",
    "checkpoint": "while the host writes or reads checkpoints",
    "dependency": "with work queued that waits for another stream or an event",
    "unseen": "for reasons that cannot be seen",
}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _points(share: float) -> str:
    n = round(100 * share)
    return "1 point" if n == 1 else f"{n} points"


def short_kernel(name: str, most: int = 40) -> str:
    """A kernel's name without namespaces."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    name = name.partition("<")[0].partition("(")[0] or name
    return name if len(name) <= most else name[: most - 1] + "…"


def device_verdict(rank: Rank, ident: str, share: float, input_stages: dict[str, float]) -> str | None:
    """The sentence for a part covered by the device figures; None for the others."""
    d = device_shares(rank)
    if d is None:
        return None
    if ident == "device":
        return _busy(d)
    if ident == "host":
        return _host(d, share)
    if ident == "checkpoint" and d.account.in_checkpoints_s > MAJORITY * share * d.account.observed_s:
        return (
            f"The GPU waits for checkpoints: for {_percent(share)} of the time the host writes or reads them"
            " and the GPU has at most their copies to do."
        )
    idle = f"The GPU idles {_percent(d.idle)} of the time, {_points(share)} of it"
    if ident == "input":
        words = input_words(input_stages)
        if rank.workers and words.endswith(")"):
            n = len(rank.workers)
            words = f"{words[:-1]}, {n} loader {'worker' if n == 1 else 'workers'})"
        return f"{idle} waiting for data{words}."
    return f"{idle} {_WAITS[ident]}." if ident in _WAITS else None


def _busy(d: DeviceShares) -> str:
    at_most = "at most " if d.account.source == "events" else ""
    said = f"The GPU is the bottleneck: it is busy {at_most}{_percent(d.account.busy_share)} of the time"
    if d.kind is None or not d.account.busy_s:
        return said + "."
    return f"{said}; {d.kind} kernels take {_percent(d.account.kernels[d.kind] / d.account.busy_s)} of that."


def _host(d: DeviceShares, share: float) -> str:
    where = f", most of it in {stage_words(d.phase)}" if d.phase else ""
    if d.account.host_paced_s > MAJORITY * share * d.account.observed_s:
        return (
            f"The GPU waits for the host: for {_percent(share)} of the time it is done as soon as the host"
            f" has launched its work{where}."
        )
    return (
        f"The GPU idles {_percent(d.idle)} of the time, {_points(share)} of it while the host launches work"
        f" or runs Python{where}."
    )


def host_whereabouts(a: DeviceAccount, most: int = 3) -> str:
    """The functions, and the I/O, that the host was in while the device waited for it."""
    told = [f"{_place(name)} {1e3 * s:.3g} ms" for name, s in [*a.host_functions.items()][:most]]
    files = [f"{_place(name)} {1e3 * s:.3g} ms" for name, s in [*a.host_io.items()][:most]]
    return " and ".join(
        part for part in (", ".join(told), f"I/O: {', '.join(files)}" if files else "") if part
    )


def _place(name: str, most: int = 60) -> str:
    """A shortened name: the end of a long name says more than its beginning."""
    return name if len(name) <= most else "…" + name[1 - most :]


def device_reason(rank: Rank, ident: str) -> str | None:
    """The evidence."""
    d = device_shares(rank)
    if d is None:
        return None
    a = d.account
    if ident == "device" and a.top:
        told = [f"{short_kernel(t['name'])} {_percent(t['share'])}" for t in a.top[:3]]
        return f"Largest kernels: {', '.join(told)} of the kernel time."
    if ident == "host" and (where := host_whereabouts(a)):
        return (
            f"While it idles the host is in {where}; {plural(a.launches, 'launch', 'launches')},"
            f" {a.launch_delay_us or 0:.3g} us each from call to start."
        )
    if ident in ("device", "host") and a.source == "events":
        lag = "late" if ident == "device" else "at once"
        return f"The device reaches the boundaries of phases {lag}; a profiler window would name kernels."
    return None


def device_advice(ident: str) -> str | None:
    """What to try."""
    return _TRY.get(ident)
