"""Reads torch profiler traces: what `vime-otel analyze` reports; see docs/analyze.md.

A trace is read in blocks and reduced as it comes (`reading`, `columns`), nested and put to account (`nesting`,
`timeline`, `summary`), and compared with the other ranks of its engine (`engines`, `skew`). Values in, values out:
only `reading` and `runs` touch files.
"""
