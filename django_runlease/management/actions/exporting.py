"""``metrics``: the figures for Prometheus, on standard output or in a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from ... import history, metrics
from ...runner import FAILED
from .console import Console


def export(console: Console, alias: str, json: bool, output: str | None, **options: Any) -> None:
    text = history.to_json(metrics.as_json(alias)) + "\n" if json else metrics.text(alias)
    if output is None:
        console.say(text)
        return
    try:
        replace_file(Path(output), text)
    except OSError as error:
        raise CommandError(f"--output {output}: {error}", returncode=FAILED) from error


def replace_file(path: Path, text: str) -> None:
    """Write *text* so that whoever reads *path* meets the old content or the new, never a part.

    Raises OSError if that cannot be done; the file is then as it was.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        # A rename would take the place of a device, as /dev/stdout is.
        raise OSError("it is not a regular file")
    # In the same folder, because a rename cannot leave a file system, and hidden, because the
    # node exporter reads all that ends with .prom.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    new = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            # The exporter is another user.
            os.fchmod(file.fileno(), 0o644)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
