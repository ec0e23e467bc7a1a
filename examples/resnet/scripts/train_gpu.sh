#!/bin/sh
# NUM_CARDS=4 sh scripts/train_gpu.sh [options of train_with_fleet.py]
# Trains on the first NUM_CARDS cards of this machine (1 if not set; 0 is one worker on the CPU).
# The logs of all workers are in LOG_DIR (log if not set): log/workerlog.0 is the first one's.
set -eu
cd "$(dirname "$0")/.."
NUM_CARDS=${NUM_CARDS:-1}
if [ "$NUM_CARDS" -eq 0 ]; then
  cards=none
else
  cards=$(seq -s, 0 $((NUM_CARDS - 1)))
fi
exec "${PYTHON:-python}" -m fleetx.launch --gpus "$cards" --log_dir "${LOG_DIR:-log}" \
  train_with_fleet.py --model=ResNet50 --data_dir=./ImageNet --fp16=True "$@"
