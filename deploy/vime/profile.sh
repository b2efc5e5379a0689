#!/usr/bin/env bash
# Records steps and takes torch profiles on every engine of the job whose log is $TRAIN_LOG (train.log).
# On the machine that runtime-env.json names in VIME_OTEL_COLLECTOR, with the same VIME_OTEL_TOKEN.
set -euo pipefail
listen=${COLLECTOR_LISTEN:-10.0.0.1:4318}

exec vime-otel collect --log "${TRAIN_LOG:-train.log}" --http "$listen" --torch-profile --requests 3 "$@"
