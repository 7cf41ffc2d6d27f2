#!/bin/sh
# Epilog of slurm.conf: ends what prolog.sh has started. Change the two paths as there.
PATH=/opt/cotenant/bin:/usr/sbin:/usr/bin:/sbin:/bin
FOLDER=/run/cotenant-slurm
export PATH
[ -d "$FOLDER/$SLURM_JOB_ID" ] || exit 0
cotenant slurm epilog --folder "$FOLDER" 2>>"$FOLDER/log"
exit 0 # slurmd drains a node whose Epilog fails
