"""A fake `nvidia-cuda-mps-control` that logs its commands."""

from __future__ import annotations

from pathlib import Path

CONTROL = """#!/bin/sh
# A control daemon whose state is files in its pipe folder; it logs every command with the server's folder name.
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
here=$(dirname "$0")
if [ "$1" = -d ]; then
    echo "start $CUDA_VISIBLE_DEVICES $(id -u)" >> "$here/notes"
    if [ -e "$here/broken" ]; then echo "An instance of this daemon is already running"; exit 1; fi
    touch "$pipe/control"
    sleep 1 &  # a child that holds the inherited file descriptors
    exit
fi
read -r command pid
echo "$command $(basename "$(dirname "$pipe")")" >> "$here/notes"
if [ ! -e "$pipe/control" ]; then echo "Cannot find MPS control daemon process"; exit 1; fi
case $command in
    quit) [ -e "$pipe/busy" ] || rm "$pipe/control" ;;
    get_server_list) [ ! -e "$pipe/servers" ] || cut -d' ' -f1 "$pipe/servers" ;;
    get_server_status) sed -n "s/^$pid //p" "$pipe/servers" ;;
esac
"""


def put(folder: Path) -> Path:
    """Write the program into `folder`; returns the path of its log. A file `broken` next to it makes its start fail."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    return folder / "notes"
