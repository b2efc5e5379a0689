"""The timings `sync` and `events` on a real GPU, where there is one."""

from __future__ import annotations

import pytest
from timing_check import check_all, unavailable


def test_sync_and_events_tell_the_devices_time() -> None:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    assert [text for text, held in check_all() if not held] == []
