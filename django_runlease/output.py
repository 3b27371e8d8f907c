"""What a job prints, kept back until it is known whether anybody needs to read it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any


class Quiet:
    """Say :attr:`keep` before the block ends to have the output printed after all."""

    keep = True


@contextmanager
def quiet(*, until_failure: bool) -> Iterator[Quiet]:
    """Keep back what this process and its children print within the block.

    It is printed at the end if ``keep`` is set (or an exception leaves the block), and dropped
    otherwise. Where *until_failure* is false, nothing is kept back.
    """
    state = Quiet()
    with ExitStack() as stack:
        if until_failure:
            for stream in (sys.stdout, sys.stderr):
                stack.enter_context(_kept_back(stream, state))
        yield state


@contextmanager
def _kept_back(stream: Any, state: Quiet) -> Iterator[None]:
    # The descriptor and not the object, for what children and C code print.
    descriptor = stream.fileno()
    stream.flush()
    with tempfile.TemporaryFile() as kept, os.fdopen(os.dup(descriptor), "wb") as original:
        os.dup2(kept.fileno(), descriptor)
        try:
            yield
        finally:
            stream.flush()
            os.dup2(original.fileno(), descriptor)
            if state.keep:
                _copy(kept, original)


def _copy(kept: IO[bytes], original: IO[bytes]) -> None:
    kept.seek(0)
    shutil.copyfileobj(kept, original)
    original.flush()
