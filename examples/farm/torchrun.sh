#!/usr/bin/env bash
# A training job whose graphs are compiled by a farm on the same machine, to try one out:
#
#     examples/farm/torchrun.sh PROGRAM [ARGUMENT...]
#
# For a real farm, run the scheduler and `fxpool farm worker` on other machines, with the same key file.
set -euo pipefail

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null; wait; rm -rf "$folder"' EXIT

export FXPOOL_REMOTE_KEY_FILE=${FXPOOL_REMOTE_KEY_FILE:-$folder/key}
[ -e "$FXPOOL_REMOTE_KEY_FILE" ] || fxpool cache key "$FXPOOL_REMOTE_KEY_FILE"

port=${PORT:-8786}
farm=dask://127.0.0.1:$port
dask scheduler --host 127.0.0.1 --port "$port" --no-dashboard 2> "$folder/scheduler.log" &

# The farm's cache and server are its own, as on another machine.
mkdir -m 700 "$folder/cache" "$folder/runtime"
FXPOOL_CACHE_DIR=$folder/cache FXPOOL_RUNTIME_DIR=$folder/runtime \
    fxpool farm worker "$farm" 2> "$folder/worker.log" &

export FXPOOL_FARM=$farm
until fxpool farm status; do sleep 1; done

torchrun --standalone --nproc-per-node "${RANKS:-2}" "$@"
