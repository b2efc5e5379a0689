"""An in-process engine whose windows nobody takes, or that finds those of an engine that is gone.

Usage: outbox.py MODEL DIRECTORY RESULT, with OUTBOX_TEST in the environment: `record` under the file trigger and end,
`deliver` what an earlier engine left, or `work` until DIRECTORY/stop is there.
"""

import os
import sys
from pathlib import Path

from common import PROMPTS, arm, generate, make_llm, report, wait_for_end, wait_until


def waiting(directory: Path) -> list[str]:
    """The files of every outbox."""
    return [str(path) for path in directory.glob("*/outbox/*.window")]


def main() -> None:
    model, directory, task = sys.argv[1], Path(sys.argv[2]), os.environ["OUTBOX_TEST"]
    llm = make_llm(model)
    generate(llm, PROMPTS, 2)
    if task == "record":
        arm(directory, 12)
        engine = llm.llm_engine.engine_core.engine_core
        wait_until(lambda: engine._vime_otel.status.phase == "armed", "arming")
        generate(llm, PROMPTS, 16)
        header = wait_for_end(directory)
        wait_until(lambda: waiting(directory), "the outbox")
        report({"header": header})
    elif task == "deliver":
        wait_until(lambda: not waiting(directory), "the delivery")
        report({})
    else:
        (directory / "working").touch()
        while not (directory / "stop").exists():
            generate(llm, PROMPTS, 16)


if __name__ == "__main__":
    main()
