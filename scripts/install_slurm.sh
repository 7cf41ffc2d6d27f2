#!/usr/bin/env bash
# Installs Debian's Slurm for tests/needs_slurm, where that is possible: as root, with apt-get. Never fails: without it,
# these tests are skipped and say so.
set -uo pipefail

PACKAGES=(slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)
LIMIT_S=100  # for all calls of apt-get together

absent=0
for program in slurmctld slurmd sbatch munged; do command -v "$program" >/dev/null || absent=1; done
if ((!absent)); then
    exit 0
fi
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "install_slurm: not root, or no apt-get: the tests on Slurm will be skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Debian starts what it installs; the tests start their own, in a folder of their own.
options=(-q -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=20)
apt() { ((SECONDS < LIMIT_S)) && timeout $((LIMIT_S - SECONDS)) apt-get "$@" >/dev/null 2>&1; }

apt install "${options[@]}" "${PACKAGES[@]}" ||
    { apt update -q && apt install "${options[@]}" "${PACKAGES[@]}"; } ||
    echo "install_slurm: apt-get has no Slurm for us: the tests on Slurm will be skipped"
exit 0
