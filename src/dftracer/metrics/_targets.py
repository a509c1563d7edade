"""Where figures go: Prometheus, by a file or a small server for scrapes, and targets that speak through a
package of their own (OpenTelemetry, TensorBoard, W&B, MLflow).

A package is imported by the target's own thread, when it writes for the first time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import dftracer
from dftracer import _config, _core
from dftracer._packages import need
from dftracer.metrics._figures import FAMILIES, Figures, samples, scalars

# --- Prometheus

PORT = 9464
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PORTS_TRIED = 64
_REQUEST_S = 2.0  # how long one client may keep the next waiting
_LONGEST_REQUEST = 1 << 14
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def exposition(figures: Figures, labels: dict[str, str], running: bool = True) -> str:
    """The text format, version 0.0.4."""
    lines = []
    for metric, found in samples(figures, running):
        if found:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for suffix, more, value in found:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**labels, **more}.items())
            lines.append(f"{metric.name}{suffix}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class TextFile:
    """A file for node_exporter's textfile collector; readers see the old or the new one, never a part."""

    def __init__(self, path: str, labels: dict[str, str]) -> None:
        if path.endswith("/") or os.path.isdir(path):
            path = os.path.join(path, f"dftracer-{labels['run']}-{labels['rank']}.prom")
        elif (_config.rank_info().world_size or 1) > 1:
            stem, suffix = os.path.splitext(path)
            path = f"{stem}-{labels['rank']}{suffix}"
        self.path = os.path.abspath(path)
        self._labels = labels
        os.makedirs(os.path.dirname(self.path), exist_ok=True)

    def write(self, figures: Figures, last: bool) -> None:
        """Replace it."""
        text = exposition(figures, self._labels, running=not last)
        # Not *.prom, which the collector would read.
        beside = f"{self.path}.{os.getpid()}.tmp"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, self.path)
        except OSError:
            if os.path.exists(beside):
                os.unlink(beside)
            raise

    def close(self) -> None:
        """The file stays, with the last figures."""


class Server:
    """`/metrics` on the first free port from the one given plus the rank on this host."""

    def __init__(self, where: str, labels: dict[str, str]) -> None:
        host, port = address(where)
        self._labels = labels
        rank = (_config.rank_info().local_rank or 0) if port else 0
        self._socket = _listening(host, port + rank)
        bound = self._socket.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        _core.log_metadata("CM", "metrics.prometheus", self.address)

    def serve(self, read: Callable[[], Figures]) -> None:
        """Answer scrapes until `close`."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            with client:
                try:
                    self._answer(client, read)
                except OSError:
                    continue  # it has gone

    def _answer(self, client: socket.socket, read: Callable[[], Figures]) -> None:
        method, path = _request(client)
        body = ""
        if method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        elif path.partition("?")[0] not in ("/metrics", "/"):
            status = "404 Not Found"
        else:
            status, body = "200 OK", exposition(read(), self._labels)
        content = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        client.settimeout(_REQUEST_S)
        client.sendall(head.encode() + (b"" if method == "HEAD" else content))

    def close(self) -> None:
        """Free the port; wakes the thread that waits for scrapes."""
        with contextlib.suppress(OSError):  # it may not be connected any more
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_in_child(self) -> None:
        """In a forked child: the port is the parent's alone."""
        self._socket.close()


def address(where: str) -> tuple[str, int]:
    """`9464`, `0.0.0.0:9464`, `[::]:9464` or nothing; loopback unless told."""
    host, _, port = where.rpartition(":")
    if not port:
        return host.strip("[]") or "127.0.0.1", PORT
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{port} is not a port")
    return host.strip("[]") or "127.0.0.1", int(port)


def _listening(host: str, first: int) -> socket.socket:
    """A socket on `first`, or on the next port that is free: another job of this host may have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(16)
        except OSError as error:
            listening.close()
            if error.errno not in _TAKEN:
                raise
        else:
            return listening
    raise OSError(f"no free port from {first} on")


def _request(client: socket.socket) -> tuple[str, str]:
    """Method and path of a request; whatever its headers say is not needed."""
    until = time.monotonic() + _REQUEST_S
    text = b""
    while b"\r\n\r\n" not in text and b"\n\n" not in text:
        client.settimeout(max(0.001, until - time.monotonic()))
        more = client.recv(4096)
        text += more
        if not more or len(text) > _LONGEST_REQUEST or time.monotonic() > until:
            raise OSError("not a request")
    words = text.split(b"\n", 1)[0].decode("latin-1").split()
    return (words[0], words[1]) if len(words) >= 2 else ("", "")


# --- Packages of their own

_TIMEOUT_S = 5.0


class _Curve:
    """The figures as points, one for the steps since the point before."""

    def __init__(self) -> None:
        self._before: Figures | None = None

    def point(self, figures: Figures) -> dict[str, float]:
        """The next one; empty if there was no step."""
        recent = figures.since(self._before)
        return scalars(recent) if recent.steps > 0 else {}

    def arrived(self, figures: Figures) -> None:
        """The next point begins after these."""
        self._before = figures


class TensorBoard:
    """Event files in a directory; in one per rank if there are several."""

    def __init__(self, directory: str, labels: dict[str, str]) -> None:
        if (_config.rank_info().world_size or 1) > 1:
            directory = os.path.join(directory, f"rank{labels['rank']}")
        self._directory = os.path.abspath(directory)
        self._curve = _Curve()
        self._writer: Any = None

    def write(self, figures: Figures, last: bool) -> None:
        """One event with all scalars."""
        point = self._curve.point(figures)
        if not point:
            return
        event = need("tensorboard.compat.proto.event_pb2")
        if self._writer is None:
            self._open(event)
        value = [{"tag": tag, "simple_value": number} for tag, number in point.items()]
        self._put(event.Event(wall_time=time.time(), step=figures.step, summary={"value": value}))
        self._curve.arrived(figures)

    def _open(self, event: Any) -> None:
        os.makedirs(self._directory, exist_ok=True)
        # A name that the user's own writer in this directory does not use.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.dftracer"
        # Unbuffered: a forked child must not write what its parent has not.
        file = open(os.path.join(self._directory, name), "xb", buffering=0)  # noqa: SIM115
        self._writer = need("tensorboard.summary.writer.record_writer").RecordWriter(file)
        self._put(event.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _put(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class Otlp:
    """OpenTelemetry's own SDK, by OTLP over HTTP; its usual variables apply where no URL is given."""

    def __init__(self, url: str, labels: dict[str, str]) -> None:
        self._url = _signal_url(url)
        self._labels = labels
        self._figures: Figures | None = None
        self._last = False
        self._reader: Any = None
        self._provider: Any = None
        self._exporter: Any = None

    def write(self, figures: Figures, last: bool) -> None:
        """Send everything once."""
        self._figures, self._last = figures, last
        if self._reader is None:
            self._open()
        self._exporter.succeeded = False
        self._reader.collect(timeout_millis=_TIMEOUT_S * 1000)
        if not self._exporter.succeeded:
            raise ConnectionError("no answer, or a refusal")

    def _open(self) -> None:
        _silence_from(threading.get_ident())
        sdk = need("opentelemetry.sdk.metrics", "otel")
        export = need("opentelemetry.sdk.metrics.export", "otel")
        http = need("opentelemetry.exporter.otlp.proto.http.metric_exporter", "otel")
        resources = need("opentelemetry.sdk.resources", "otel")
        # Not `Resource.create`, whose thread pool cannot start while the program ends.
        resource = resources.Resource({"service.name": self._labels["job"]})
        resource = resource.merge(resources.OTELResourceDetector().detect())

        class Exporter(http.OTLPMetricExporter):  # type: ignore[misc, name-defined]
            succeeded = False

            def export(self, *args: Any, **kwargs: Any) -> Any:
                result = super().export(*args, **kwargs)
                self.succeeded = result is export.MetricExportResult.SUCCESS
                return result

        self._exporter = Exporter(endpoint=self._url, timeout=_TIMEOUT_S)
        # No thread of its own, which would come back to life in every forked worker.
        self._reader = export.PeriodicExportingMetricReader(self._exporter, math.inf)
        self._provider = sdk.MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("dftracer", dftracer.__version__)
        observation = need("opentelemetry.metrics", "otel").Observation
        for metric in FAMILIES:
            grows = metric.kind != "gauge"
            create = meter.create_observable_counter if grows else meter.create_observable_gauge
            for suffix in ("_sum", "_count") if metric.kind == "summary" else ("",):
                observer = self._observer(metric.name, suffix, observation)
                create(metric.name + suffix, [observer], description=metric.help)

    def _observer(self, name: str, suffix: str, observation: Any) -> Callable[[Any], list[Any]]:
        def observe(_: Any) -> list[Any]:
            if self._figures is None:
                return []
            return [
                observation(value, {**self._labels, **more})
                for metric, found in samples(self._figures, running=not self._last)
                for end, more, value in found
                if (metric.name, end) == (name, suffix)
            ]

        return observe

    def close(self) -> None:
        """Nothing is kept open between two writes."""
        if self._exporter is not None:
            self._exporter.shutdown()


def _signal_url(url: str) -> str | None:
    if not url:
        return None
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError(f"{url} is not an http:// or https:// address")
    return f"{url.rstrip('/')}/v1/metrics" if "/" not in rest.rstrip("/") else url


def _silence_from(thread: int) -> None:
    """The SDK logs every failure; one line of ours says it, and nothing goes to the program's handlers."""

    class DropOurs(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return record.thread != thread

    for name in (
        "opentelemetry.exporter.otlp.common.http",
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.sdk.metrics._internal.export",
    ):
        logging.getLogger(name).addFilter(DropOurs())


class WandB:
    """The program's own run of Weights & Biases; its step counter is left alone."""

    def __init__(self, _: str, labels: dict[str, str]) -> None:
        self._curve = _Curve()
        self._defined: object = None

    def write(self, figures: Figures, last: bool) -> None:
        """Add to the row that the program commits next."""
        point = self._curve.point(figures)
        run: Any = getattr(sys.modules.get("wandb"), "run", None)
        if not point or run is None:
            return
        if self._defined is not run:
            run.define_metric("dftracer/step")
            run.define_metric("dftracer/*", step_metric="dftracer/step")
            self._defined = run
        run.log({**point, "dftracer/step": figures.step}, commit=False)
        self._curve.arrived(figures)

    def close(self) -> None:
        """The run is the program's."""


class MLflow:
    """The program's active run of MLflow."""

    def __init__(self, _: str, labels: dict[str, str]) -> None:
        self._curve = _Curve()

    def write(self, figures: Figures, last: bool) -> None:
        """One batch of metrics with the step's number."""
        point = self._curve.point(figures)
        mlflow = sys.modules.get("mlflow")
        run = None if mlflow is None else _active_run(mlflow)
        if not point or mlflow is None or run is None:
            return
        entities = need("mlflow.entities")
        now = int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, figures.step) for name, value in point.items()]
        mlflow.MlflowClient().log_batch(run, metrics=metrics)
        self._curve.arrived(figures)

    def close(self) -> None:
        """The run is the program's."""


def _active_run(mlflow: ModuleType) -> str | None:
    """The id of the run that the program has open."""
    # Active runs belong to threads; that of any thread only MLflow's own module knows.
    fluent = sys.modules.get("mlflow.tracking.fluent")
    latest = getattr(fluent, "_get_latest_active_run", mlflow.last_active_run)
    run = latest()
    return run.info.run_id if run is not None and run.info.status == "RUNNING" else None
