#!/usr/bin/env bash
# Installs Debian's Slurm for tests/needs_slurm, where that is possible: as root, with apt-get. Never fails: without it,
# these tests are skipped and say so.
set -uo pipefail

PACKAGES=(slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)
LIMIT_S=60  # for each call of apt-get

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
if ! timeout "$LIMIT_S" apt-get install "${options[@]}" "${PACKAGES[@]}" >/dev/null 2>&1; then
    timeout "$LIMIT_S" apt-get update -q >/dev/null 2>&1
    timeout "$LIMIT_S" apt-get install "${options[@]}" "${PACKAGES[@]}" >/dev/null 2>&1 ||
        echo "install_slurm: apt-get has no Slurm for us: the tests on Slurm will be skipped"
fi
exit 0
