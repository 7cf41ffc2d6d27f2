#!/usr/bin/env bash
# Makes $VENV (default .venv) ready for `make demo`, `make test` and `make lint`. Does nothing when it already is.
#
#   PYTHON       the Python to build on, 3.10 or newer (default python3). If it has torch, that torch is used.
#   TORCH_INDEX  package index to take torch from, e.g. https://download.pytorch.org/whl/cpu, which has builds
#                without CUDA that are a tenth of the size (default: pip's own settings).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
TORCH_INDEX=${TORCH_INDEX:-}
STAMP=$VENV/.setup-stamp
BASE=$VENV/.setup-python
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

say() { echo "setup: $*"; }

pip_install() { "$VENV/bin/python" -m pip install -qq --constraint constraints.txt "$@"; }

has_module() { "$VENV/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# In the activated $VENV, `python3` is the one that is to be made: take what it was made from.
if [[ $("$PYTHON" -c 'import os, sys; print(os.path.realpath(sys.prefix))' 2>/dev/null) == "$(realpath -m "$VENV")" ]]; then
    if [[ -f $BASE ]]; then PYTHON=$(<"$BASE"); else PYTHON=$("$PYTHON" -c 'import sys; print(sys._base_executable)'); fi
fi
command -v "$PYTHON" >/dev/null || fail "no command \`$PYTHON\`" "install Python 3.10 or newer, or say PYTHON=/path/to/python"
found=$("$PYTHON" -c 'import platform; print(platform.python_version())') ||
    fail "\`$PYTHON\` does not run" "say PYTHON=/path/to/python"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "\`$PYTHON\` is Python $found, wanted 3.10 or newer" "say PYTHON=python3.12, or another that is installed"

# Version of the torch that $PYTHON has, or nothing. Older ones than 2.4 are of no use to us. Not imported: that takes seconds.
read_torch='
from importlib import metadata
try:
    version = metadata.version("torch")
except metadata.PackageNotFoundError:
    raise SystemExit
if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) >= (2, 4):
    print(version)
'
torch_found=$("$PYTHON" -c "$read_torch" 2>/dev/null || true)

key=$(
    {
        cat constraints.txt pyproject.toml scripts/setup.sh
        "$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix, sys.prefix)'
        echo "$torch_found" "$TORCH_INDEX" "$PWD"
    } | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
)
if [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$key" ]]; then
    exit 0
fi

say "Python $found in $VENV"
rm -f "$STAMP"
if [[ -n $torch_found ]] && ! "$PYTHON" -c 'import torch' 2>/dev/null; then
    say "torch $torch_found of \`$PYTHON\` cannot be imported, installing another"
    torch_found=
fi
if [[ -n $torch_found ]]; then
    say "torch $torch_found found in \`$PYTHON\`, using it"
    "$PYTHON" -m venv --clear --system-site-packages "$VENV"
    # `--system-site-packages` shows the packages of the base Python only; if $PYTHON is in a venv itself, show those, too.
    "$PYTHON" -c '
import site, sys
if sys.prefix != sys.base_prefix:
    print("\n".join(site.getsitepackages()))
' >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer-venv.pth"
else
    "$PYTHON" -m venv --clear "$VENV"
    say "torch (1 of 4; the largest part, minutes on a slow line)"
    pip_install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
fi

say "torchvision and timm (2 of 4)"
# Without their dependencies: either would bring another torch. timm's are installed with transformers below.
pip_install numpy pillow
if ! has_module torchvision; then
    # torchvision 0.N belongs to torch 2.(N-15); torch checks nothing, but a pair from different years may not import.
    minor=$("$VENV/bin/python" -c 'import torch; print(int(torch.__version__.split(".")[1]) + 15)')
    if [[ $minor == 28 ]]; then
        pip_install --no-deps torchvision
    else
        "$VENV/bin/python" -m pip install -qq --no-deps "torchvision==0.$minor.*"
    fi
fi
pip_install --no-deps timm

say "transformers and accelerate (3 of 4)"
pip_install transformers accelerate

say "cotenant and the development tools (4 of 4)"
pip_install --editable '.[dev,learn,plots,sim,top]'

"$PYTHON" -c 'import sys; print(sys.executable)' >"$BASE"
echo "$key" >"$STAMP"
say "done; next: make demo, make test"
