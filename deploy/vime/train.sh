#!/usr/bin/env bash
# Starts a vime job whose engines can be recorded and profiled, and whose rollouts wait.
# Usage: train.sh [further arguments of train.py]; the log goes to $TRAIN_LOG (train.log).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" \
    --runtime-env-json="$(cat "$here/runtime-env.json")" \
    -- python3 train.py \
    --rollout-function-path vime.rollout.sleep_rollout.sleep \
    --vllm-profiler-config "$(cat "$here/profiler-config.json")" \
    "$@" 2>&1 | tee "${TRAIN_LOG:-train.log}"
