#!/usr/bin/env bash
# A training job on GPU nodes, with a farm on CPU nodes of the same job:
#
#     sbatch examples/farm/slurm.sh train.py
#
# Both parts need the same Python environment and a file system that all nodes share, for the key.
#SBATCH --job-name=train
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=64
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=8 --ntasks-per-node=1 --gpus-per-node=8
set -euo pipefail

program=$1
ranks=${RANKS:-8}

export FXPOOL_REMOTE_KEY_FILE=${FXPOOL_REMOTE_KEY_FILE:-$HOME/.config/fxpool/key}
[ -e "$FXPOOL_REMOTE_KEY_FILE" ] || fxpool cache key "$FXPOOL_REMOTE_KEY_FILE"

# The batch script runs on the first CPU node.
port=${PORT:-8786}
head=${SLURMD_NODENAME:-$(hostname)}
farm=dask://$head:$port
dask scheduler --port "$port" --no-dashboard &
scheduler=$!
srun --het-group=0 fxpool farm worker "$farm" &
worker=$!
trap 'kill $worker $scheduler 2> /dev/null; wait' EXIT

export FXPOOL_FARM=$farm
until fxpool farm status; do sleep 1; done

srun --het-group=1 torchrun --nnodes "${SLURM_JOB_NUM_NODES_HET_GROUP_1:-1}" --nproc-per-node "$ranks" \
    --rdzv-backend c10d --rdzv-endpoint "${MASTER:-$(hostname)}:${MASTER_PORT:-29400}" "$program"
