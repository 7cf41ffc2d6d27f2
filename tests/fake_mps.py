"""An `nvidia-cuda-mps-control` that notes what it was asked, and for whom."""

from __future__ import annotations

from pathlib import Path

CONTROL = """#!/bin/sh
# A control daemon whose state is a file in its pipe folder; it notes what it was asked, and for whom.
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
here=$(dirname "$0")
if [ "$1" = -d ]; then
    echo "start $CUDA_VISIBLE_DEVICES $(id -u)" >> "$here/notes"
    if [ -e "$here/broken" ]; then echo "An instance of this daemon is already running"; exit 1; fi
    touch "$pipe/control"
    sleep 1 &  # a daemon that keeps what it inherited
    exit
fi
read -r asked pid
echo "$asked $(basename "$(dirname "$pipe")")" >> "$here/notes"
if [ ! -e "$pipe/control" ]; then echo "Cannot find MPS control daemon process"; exit 1; fi
case $asked in
    quit) [ -e "$pipe/busy" ] || rm "$pipe/control" ;;
    get_server_list) [ ! -e "$pipe/servers" ] || cut -d' ' -f1 "$pipe/servers" ;;
    get_server_status) sed -n "s/^$pid //p" "$pipe/servers" ;;
esac
"""


def put(folder: Path) -> Path:
    """Write the program into `folder`; the path of its notes. `broken` beside it keeps it from starting."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    return folder / "notes"
