#!/bin/sh
# Prolog of slurm.conf: MPS for jobs with `--comment=mps`, and what jobs do on their GPUs in AdminComment.
# Change the two paths below, and `requested` to `always` or `never`, as your site needs.
PATH=/opt/cotenant/bin:/usr/sbin:/usr/bin:/sbin:/bin
FOLDER=/run/cotenant-slurm
export PATH
[ -n "$SLURM_JOB_GPUS" ] || exit 0
mkdir -p "$FOLDER" && cotenant slurm prolog --mps requested --folder "$FOLDER" 2>>"$FOLDER/log"
exit 0 # slurmd drains a node whose Prolog fails
