# SPDX-License-Identifier: Apache-2.0
"""The one exception that the command line turns into a message and an exit code."""

from __future__ import annotations


class ForkError(Exception):
    """A failure that a user can act on.

    ``message`` says what is wrong, ``hint`` the way out. ``code`` is the exit status: 2 for bad input (the
    default), 1 for a failure of something that the input did not cause.
    """

    def __init__(self, message: str, hint: str | None = None, code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"
