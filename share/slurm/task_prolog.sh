#!/bin/sh
# TaskProlog of slurm.conf: slurmstepd adds the lines that it prints to the environment of the task.
FOLDER=/run/cotenant-slurm
here=$FOLDER/$SLURM_JOB_ID
[ -r "$here/environment" ] || exit 0
cat "$here/environment"
# MPS numbers its GPUs anew, from 0, and takes names as they are: CUDA_VISIBLE_DEVICES gets names for numbers.
ids=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}
names=
for id in $(echo "$ids" | tr , ' '); do
    names=$names,$(sed -n "s/^$id //p" "$here/gpus")
done
# Not where a task has some of the GPUs of its step (--gpu-bind): which, Slurm does not say.
if [ -n "$ids" ] && [ "$(echo "$ids" | tr -cd ,)" = "$(echo "$CUDA_VISIBLE_DEVICES" | tr -cd ,)" ]; then
    echo "export CUDA_VISIBLE_DEVICES=${names#,}"
fi
exit 0
