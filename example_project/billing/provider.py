"""The payment provider, which is outside of the database: a client, and a server for the demo.

Like real ones it honours idempotency keys: asked twice with one key, it charges one time.
"""

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

LATENCY = 0.3
"""Seconds that it takes to answer."""


def charge(cents: int, *, key: UUID) -> str | None:
    """Charge *cents*; return the provider's number for it.

    Goes to PROVIDER_URL. If that is not set, nobody is charged, and there is no number.
    """
    url = os.environ.get("PROVIDER_URL")
    if not url:
        time.sleep(LATENCY)
        return None
    request = urllib.request.Request(
        f"{url}/charges",
        data=json.dumps({"cents": cents}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": str(key)},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        number: str = json.load(answer)["charge"]
    return number


class Provider(ThreadingHTTPServer):
    """A provider on a free port of this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Charging)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = 0
        self.charges: dict[str, dict[str, Any]] = {}
        """By idempotency key."""
        self._lock = threading.Lock()

    def take(self, key: str, cents: int) -> dict[str, Any]:
        with self._lock:
            self.requests += 1
            new = {"charge": f"ch_{len(self.charges) + 1}", "cents": cents}
            return self.charges.setdefault(key, new)


class _Charging(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        taken = self.server.take(self.headers["Idempotency-Key"], wanted["cents"])
        time.sleep(LATENCY)
        self.send_response(201)
        self.end_headers()
        self.wfile.write(json.dumps(taken).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name there
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Provider]:
    """A provider that works for the time of the block."""
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()
