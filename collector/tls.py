"""TLS on the collector's ports: one certificate for HTTP and gRPC."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from vime_otel.data.errors import UsageError


@dataclass(frozen=True)
class ServerTls:
    """The files of a certificate chain, the server's own first, and of its key; both PEM."""

    certificate: Path
    key: Path

    def http_context(self) -> ssl.SSLContext:
        """For the HTTP listener. Raises UsageError where the files don't do."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            for path in (self.certificate, self.key):
                path.read_bytes()
            context.load_cert_chain(self.certificate, self.key, password=_refuse)
        except ssl.SSLError as error:
            what = "do not belong together" if "MISMATCH" in str(error.reason) else "are no PEM certificate and key"
            raise UsageError(f"--tls-cert {self.certificate} and --tls-key {self.key} {what}") from error
        except OSError as error:
            raise UsageError(
                f"{error.filename} can't be read ({error.strerror}); mend --tls-cert or --tls-key"
            ) from error
        return context

    def grpc_credentials(self) -> Any:
        """For the gRPC listener; the files must have passed `http_context`."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])

    def own_clients_context(self) -> ssl.SSLContext:
        """For clients in this process: they trust this very certificate, whatever name it is made out to."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        return context


def _refuse() -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise UsageError("the key of --tls-key is encrypted; decrypt it first (`openssl pkey -in KEY -out PLAIN`)")
