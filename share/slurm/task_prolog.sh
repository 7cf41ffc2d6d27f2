#!/bin/sh
# TaskProlog of slurm.conf: slurmstepd adds the lines that it prints to the environment of the task.
FOLDER=/run/cotenant-slurm
cat "$FOLDER/$SLURM_JOB_ID/environment" 2>/dev/null
exit 0
