#!/bin/sh
# NUM_CARDS=4 sh scripts/train_gpu.sh [options of train_with_fleet.py]
# Trains on NUM_CARDS cards of this machine (1 if not set; 0 is one worker on the CPU): the first
# ones, or the first of CUDA_VISIBLE_DEVICES. Paths in options begin at the folder of this example.
# The logs of all workers are in LOG_DIR (log if not set): log/workerlog.0 is the first one's.
set -eu
cd "$(dirname "$0")/.."
NUM_CARDS=${NUM_CARDS:-1}
case $NUM_CARDS in
  *[!0-9]*)
    echo "train_gpu.sh: NUM_CARDS=$NUM_CARDS is no number of cards; set it to 1, 2, ... or to 0" \
      "for one worker on the CPU" >&2
    exit 2
    ;;
esac
if [ "$NUM_CARDS" -eq 0 ]; then
  cards=none
else
  cards=$(printf '%s' "${CUDA_VISIBLE_DEVICES:-}" | cut -d, -f "1-$NUM_CARDS")
  # None are listed, or too few: then the launcher says what is missing.
  if [ "$(printf '%s' "$cards" | tr , '\n' | grep -c .)" -ne "$NUM_CARDS" ]; then
    cards=$(seq -s, 0 $((NUM_CARDS - 1)))
  fi
fi
exec "${PYTHON:-python}" -m fleetx.launch --gpus "$cards" --log_dir "${LOG_DIR:-log}" \
  train_with_fleet.py --model=ResNet50 --data_dir=./ImageNet --fp16=True "$@"
