"""Building the libraries of the null GPU: what the compiler says is told."""

from __future__ import annotations

import pytest

from cotenant.nullgpu import NullGpuError
from cotenant.nullgpu.build import _compile


def test_full_disk_is_named_with_what_to_do(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\n"
        "echo '/usr/bin/ld: final link failed: No space left on device' >&2\n"
        "echo 'collect2: error: ld returned 1 exit status' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    with pytest.raises(NullGpuError, match="final link failed: No space left on device") as full:
        _compile([str(compiler), "-shared"])
    assert "XDG_CACHE_HOME" in full.value.hint
