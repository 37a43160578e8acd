"""Private files: readable by their owner only, never overwritten."""

import os
import stat

import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.identity import check_private, write_private

posix = pytest.mark.skipif(os.name != "posix", reason="modes")


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_is_for_its_owner_alone(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_private(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_bytes() == b"secret"
    check_private(tmp_path / "key", "a key")


@posix
def test_an_existing_file_or_link_is_not_written_to(tmp_path):
    write_private(tmp_path / "key", b"old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("key", "link"):
        with pytest.raises(FileExistsError):
            write_private(tmp_path / name, b"new")
    assert (tmp_path / "key").read_bytes() == b"old"
    assert not (tmp_path / "elsewhere").exists()


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o602, 0o777])
def test_a_key_that_others_can_reach_is_refused_with_the_remedy(mode, tmp_path):
    write_private(tmp_path / "key", b"secret")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(PermissionError, match=f"run `chmod 600 {tmp_path}/key`") as caught:
        check_private(tmp_path / "key", "a key")
    assert "secret" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="no such file; expected a key"):
            check_private(path, "a key")
