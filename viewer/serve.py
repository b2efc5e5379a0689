"""The viewer on a port of this machine."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from waitress import create_server  # type: ignore[import-untyped]

from vime_otel.data import settings
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.imported import write_imported
from vime_otel.data.profile_file import read_profile
from vime_otel.data.run_files import HEADER_FILE

from .access import QUERY
from .app import Config, create_app
from .base_path import clean
from .uploads import MAX_BYTES

HOST = "127.0.0.1"
PORT = 8080
_THREADS = 8


@dataclass(frozen=True)
class Place:
    """Where a viewer listens, and for whom; `insecure` asks nobody beyond loopback for a token."""

    host: str = HOST
    port: int = PORT
    allowed_hosts: Collection[str] = ()
    base_path: str = ""
    insecure: bool = False


def serve(
    runs_root: Path,
    place: Place = Place(),
    on_ready: Callable[[str], None] = lambda url: None,
    files: Sequence[Path] = (),
    trace_link: str = "",
) -> None:
    """Serve until interrupted; `on_ready` gets the URL to open once the port is open (0 picks a free one).

    Beyond loopback, any IP address will do as the Host of a request, and this machine's name; other names are
    `allowed_hosts`. There a token is asked for: VIME_OTEL_VIEW_TOKEN, or one that is made now and stands in the
    URL. `files` are shown besides the runs; with one the URL is that file's page.
    Raises VimeOtelError when the port can't be had or a file holds nothing that can be shown.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vime-otel-view-")))
        shown = [_bring(path, scratch) for path in files]
        address, listening = _listen(place, family)
        token, told = ("", "") if address.is_loopback or place.insecure else _token()
        names = {_in_url(place.host), *place.allowed_hosts, *([] if address.is_loopback else [socket.gethostname()])}
        config = Config(
            runs_root,
            names,
            any_address=not address.is_loopback,
            base_path=place.base_path,
            token=token,
            scratch=scratch,
            trace_link=trace_link,
        )
        server = create_server(
            create_app(config), sockets=[listening], threads=_THREADS, max_request_body_size=MAX_BYTES
        )
        outward = _outward_address(family) if address.is_unspecified else place.host
        path = f"{clean(place.base_path)}/{f'runs/{shown[0]}' if len(shown) == 1 else ''}".rstrip("/")
        url = f"http://{_in_url(outward)}:{listening.getsockname()[1]}{path}"
        try:
            on_ready(f"{url}{'/' if told and not path else ''}{told}")
            server.run()
        finally:
            server.close()


def _bring(path: Path, scratch: Path) -> str:
    """Make a file one of the runs; returns its id."""
    try:
        content = path.read_bytes()
        return write_imported(scratch, read_profile(content), path.name, content)
    except IsADirectoryError as error:
        runs = path.parent if (path / HEADER_FILE).is_file() else path
        raise VimeOtelError(f"{path} is a folder; `vime-otel view --runs {runs}` shows the runs in it") from error
    except OSError as error:
        raise VimeOtelError(f"{path} can't be read ({error.strerror}); name a file of stacks") from error
    except VimeOtelError as error:
        raise VimeOtelError(f"{path}: {error}") from error


def _listen(
    place: Place, family: socket.AddressFamily
) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, socket.socket]:
    try:
        address = ipaddress.ip_address(_address_of(place.host, place.port, family))
        return address, socket.create_server((str(address), place.port), family=family)
    except (OSError, UnicodeError) as error:
        raise VimeOtelError(_why_not(error, place.host, place.port)) from error


def _token() -> tuple[str, str]:
    """(the token, how the printed link brings it): a token that was set is known to its user, and not printed."""
    chosen = settings.secret(settings.VIEW_TOKEN)
    if chosen:
        return chosen, ""
    made = secrets.token_urlsafe(24)
    return made, f"?{QUERY}={made}"


def _address_of(host: str, port: int, family: socket.AddressFamily) -> str:
    """The address to listen on for a host; raises OSError for an unknown name."""
    found = socket.getaddrinfo(host or None, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def _outward_address(family: socket.AddressFamily) -> str:
    """The address under which this machine meets others, loopback where it meets none."""
    elsewhere, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    # Connecting a datagram socket sends nothing: it only asks for the route.
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((elsewhere, 9))
        return str(probe.getsockname()[0])
    return loopback


def _in_url(host: str) -> str:
    """The host as a URL has it."""
    return f"[{host}]" if ":" in host else host


def _why_not(error: OSError | UnicodeError, host: str, port: int) -> str:
    code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, "no host's name")
    if code == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any free one"
    return f"can't serve on {host}:{port} ({reason or error}); give another with --host and --port"
