"""The example project, served from this process on a free port, under a strict policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.test.testcases import LiveServerThread

USER = "ada"
PASSWORD = "the engine"

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """A middleware that lets nothing pass but files of this site."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


@contextmanager
def serving() -> Iterator[str]:
    """Serve the site on its present database for the block; the address is given."""
    middleware = [f"{__name__}.strict", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=middleware, DEBUG=False):
        server = LiveServerThread("127.0.0.1", StaticFilesHandler, {})
        server.daemon = True
        server.start()
        server.is_ready.wait()
        if server.error:
            raise server.error
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.terminate()


def empty() -> None:
    """Remove all rows from the database, which is a test's own."""
    call_command("flush", verbosity=0, interactive=False)


def superuser() -> Any:
    """The user of the tests, made if need be."""
    users = get_user_model()._default_manager
    found = users.filter(username=USER).first()
    return found or users.create_superuser(USER, password=PASSWORD)


def session() -> str:
    """The key of a session in which the user is logged in."""
    client = Client()
    client.force_login(superuser())
    return client.cookies[settings.SESSION_COOKIE_NAME].value
