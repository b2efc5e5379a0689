"""Errors that reach a user: one line each, naming the way out."""


class VimeOtelError(Exception):
    """Something the user can mend; the command line prints the message and exits with `exit_code`."""

    exit_code = 1


class UsageError(VimeOtelError):
    """The command or a setting was written wrongly."""

    exit_code = 2


class Unavailable(VimeOtelError):
    """A server is away, overloaded, or doesn't let us in: the same may succeed later."""
