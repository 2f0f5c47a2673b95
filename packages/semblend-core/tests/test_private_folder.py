"""A folder whose files give prompts away is its owner's alone: made so, closed, or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from semblend_core.private_folder import OpenToOthersError, make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    assert mode(make_private(tmp_path / "new" / "folder", "SETTING")) == 0o700


@pytest.mark.parametrize("before", [0o755, 0o750, 0o701, 0o777])
def test_one_that_others_may_enter_is_closed_to_them(tmp_path: Path, before: int) -> None:
    tmp_path.chmod(before)
    assert mode(make_private(tmp_path, "SETTING")) == 0o700


def test_one_of_somebody_else_is_refused_with_the_setting_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OpenToOthersError, match=r"SETTING=.*open to others.*chmod 700"):
        make_private(tmp_path, "SETTING")
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    assert make_private(tmp_path, "SETTING") == tmp_path, "one that is closed may be anybody's who can write there"
