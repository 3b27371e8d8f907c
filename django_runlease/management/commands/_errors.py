"""What the two commands share: usage errors in one line, and streams to say them on."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from django.core.management import BaseCommand, CommandError
from django.core.management.base import OutputWrapper

from ...output import open_standard_streams
from ...runner import USAGE


class OneLineErrors(BaseCommand):
    """A command whose usage errors are one line, and exit code 2 from code as well."""

    def run_from_argv(self, argv: list[str]) -> None:
        if open_standard_streams():
            # The wrappers are older than the streams.
            self.stdout, self.stderr = OutputWrapper(sys.stdout), OutputWrapper(sys.stderr)
        super().run_from_argv(argv)

    def usage_error(self, message: str) -> NoReturn:
        """In place of argparse's, which prints its whole usage before."""
        if getattr(self, "_called_from_command_line", False):
            self.stderr.write(f"{self.__module__.rpartition('.')[2]}: {message}")
            sys.exit(USAGE)
        raise CommandError(message, returncode=USAGE)

    def handle(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError
