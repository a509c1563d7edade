"""An S3-compatible server (moto's), behind a front that refuses requests and may be killed."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .process import clean_environment

__all__ = ["Front", "environment", "store"]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _wait_for(port: int) -> None:
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < until, "the server does not answer"
        time.sleep(0.05)


def environment(port: int) -> dict[str, str]:
    """What a client needs to know; no request goes anywhere else."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def store() -> Iterator[int]:
    """The server itself, with an empty bucket named `bucket`; its port."""
    port = _free_port()
    env = clean_environment()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        with socket.create_connection(("127.0.0.1", port), 60) as s:
            s.sendall(
                b"PUT /bucket HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            assert b"200" in s.recv(64)
        yield port
    finally:
        server.kill()
        server.wait()


class Front:
    """Another port of the same server, which answers 503 to some of the requests; a process of its own."""

    def __init__(self, behind: int, refuse: float, log: Path) -> None:
        self.port = _free_port()
        self.log = log  # the first line of each request
        words = [str(self.port), str(behind), str(refuse), str(log)]
        self._command = [sys.executable, "-m", "support.s3", *words]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=Path(__file__).parents[1])
        _wait_for(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _serve(port: int, behind: int, refuse: float, log: str) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    while True:
        client, _ = listening.accept()
        threading.Thread(target=_answer, args=(client, behind, refuse, log), daemon=True).start()


def _answer(client: socket.socket, behind: int, refuse: float, log: str) -> None:
    """One request of a connection, which is closed after it."""
    with client, contextlib.suppress(OSError, ValueError):
        text = b""
        while b"\r\n\r\n" not in text:
            more = client.recv(1 << 16)
            if not more:
                return
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        with open(log, "ab", buffering=0) as lines:
            lines.write(head.partition(b"\r\n")[0] + b"\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        if fields.get(b"expect", b"").lower() == b"100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(body) < int(fields.get(b"content-length", b"0")):
            body += client.recv(1 << 20)
        if random.random() < refuse:
            client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        kept = [
            line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:"))
        ]
        with socket.create_connection(("127.0.0.1", behind), 60) as server:
            server.sendall(b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + body)
            while more := server.recv(1 << 20):
                client.sendall(more)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
