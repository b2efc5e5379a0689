"""The version, as the installed package tells it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vime-otel")
except PackageNotFoundError:  # a bare folder on PYTHONPATH carries no metadata
    __version__ = "0+unknown"
