"""The folder of the disk tier: one process at a time, whole donors only, damaged files aside."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # not a POSIX system: one process per folder is then the user's care
    fcntl = None  # type: ignore[assignment]

from semblend_core.kv.store.donor_file import (
    LARGEST_METADATA,
    Checksums,
    DonorMetadata,
    FileLayout,
    decode_metadata,
    encode_metadata,
    open_file,
    write_all,
    write_tensors,
)
from semblend_core.kv.store.kv_spec import LayerTensors
from semblend_core.kv.store.options import StoreDirectoryError
from semblend_core.kv.store.vocabulary import CorruptDonorError, FormerDonorError, Quarantine
from semblend_core.private_folder import OpenToOthersError, make_private

Result = TypeVar("Result")

DATA, METADATA, PARTIAL = ".safetensors", ".json", ".partial"

_OURS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.(safetensors|json)(\.partial)?")

Sync = Callable[[int], None]
"""Returns when all that was written to the descriptor survives a power cut."""


class StoreDirectory:
    """``path/donors`` and ``path/quarantine``. Files are for their owner alone: KV gives prompts away.

    A donor is written as data, then metadata; each beside its place, synced, then renamed. It is deleted in the other
    order. So metadata stands for a whole donor, whenever the process ends.
    """

    def __init__(self, path: str | os.PathLike[str], quarantine_bytes: int, sync: Sync = os.fsync) -> None:
        self.root = Path(path)
        self.donors = self.root / "donors"
        self.quarantine = self.root / "quarantine"
        self._quarantine_bytes = quarantine_bytes
        self._sync = sync
        self._undeleted: set[str] = set()
        """Donors that should be gone, and are not."""
        try:
            for folder in (self.root, self.donors, self.quarantine):
                make_private(folder, "SEMBLEND_STORE_DISK_PATH")
            self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OpenToOthersError as error:
            raise StoreDirectoryError(str(error)) from error
        except OSError as error:
            raise StoreDirectoryError(
                f"disk_path={str(self.root)!r} cannot be written ({error.strerror}): "
                "choose another folder, or set disk_bytes to 0"
            ) from error
        self._take_lock()

    def close(self) -> None:
        """Let others use the folder. Idempotent."""
        if self._lock >= 0:
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    # Said aloud: a forked child may hold the descriptor open for long.
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    def data_path(self, stem: str) -> Path:
        return self.donors / (stem + DATA)

    def write_data(self, stem: str, layout: FileLayout, layers: Sequence[LayerTensors]) -> Checksums:
        return self._write(self.data_path(stem), lambda descriptor: write_tensors(descriptor, layout, layers))

    def write_metadata(self, metadata: DonorMetadata) -> int:
        """From its return on the donor is durable. The number of bytes written."""
        content = encode_metadata(metadata)
        self._write(
            self.donors / (metadata.stem + METADATA), lambda descriptor: write_all(descriptor, memoryview(content))
        )
        return len(content)

    def delete(self, stem: str) -> None:
        """Errors pass: what cannot be deleted now is looked at again after a restart."""
        self._undeleted.discard(stem)
        for ending in (METADATA, DATA, METADATA + PARTIAL, DATA + PARTIAL):
            try:
                (self.donors / (stem + ending)).unlink(missing_ok=True)
            except OSError:
                self._undeleted.add(stem)

    def check_deleted(self) -> None:
        """StoreDirectoryError where donors that were deleted still lie here. Tries once more before."""
        for stem in list(self._undeleted):
            self.delete(stem)
        if self._undeleted:
            raise StoreDirectoryError(
                f"the files of {len(self._undeleted)} donors in {str(self.donors)!r} cannot be deleted: see to it that "
                "they can, or delete them, and purge again"
            )

    def free_bytes(self) -> int:
        status = os.statvfs(self.donors)
        return status.f_bavail * status.f_frsize

    def scan(self) -> Iterator[DonorMetadata | CorruptDonorError]:
        """Every whole donor, and what is wrong with the others, which are set aside. Removes unfinished writes, and
        donors of earlier formats.

        Files that are not named as the store names them are left alone.
        """
        names = {entry.name for entry in os.scandir(self.donors) if _OURS.fullmatch(entry.name)}
        stems = sorted(name.removesuffix(METADATA) for name in names if name.endswith(METADATA))
        for name in names - {stem + ending for stem in stems for ending in (DATA, METADATA)}:
            with contextlib.suppress(OSError):
                (self.donors / name).unlink()
        for stem in stems:
            try:
                yield self._check(stem)
            except FormerDonorError as error:
                self.delete(stem)
                yield error
            except CorruptDonorError as error:
                self.set_aside(stem, error.reason)
                yield error

    def set_aside(self, stem: str, reason: Quarantine) -> None:
        """Move a donor's files to quarantine, the metadata first, and keep the quarantine within its bytes."""
        for ending in (METADATA, DATA):
            with contextlib.suppress(OSError):
                os.replace(self.donors / (stem + ending), self.quarantine / f"{stem}.{reason}{ending}")
        self._trim_quarantine()

    def _trim_quarantine(self) -> None:
        """The newest stay. What lies there may be no file at all, and is no less removed."""
        aside = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.quarantine):
                about = entry.stat(follow_symlinks=False)
                aside.append((about.st_ctime_ns, about.st_size, Path(entry.path)))
        total = 0
        for _, size, path in sorted(aside, reverse=True):
            total += size
            if total > self._quarantine_bytes:
                total -= size
                with contextlib.suppress(OSError):
                    _remove(path)

    def empty_quarantine(self) -> None:
        """Damaged files do not always say whose they were. StoreDirectoryError where one cannot
        be deleted; the others are."""
        failed: OSError | None = None
        try:
            aside = list(self.quarantine.iterdir())
        except OSError as error:
            aside, failed = [], None if isinstance(error, FileNotFoundError) else error
        for path in aside:
            try:
                _remove(path)
            except FileNotFoundError:
                pass  # Another purge was first.
            except OSError as error:
                failed = error
        if failed is not None:
            raise StoreDirectoryError(
                f"{str(self.quarantine)!r} cannot be emptied ({failed.strerror}): empty it, and purge again"
            ) from failed

    def _check(self, stem: str) -> DonorMetadata:
        try:
            with open(open_file(self.donors / (stem + METADATA)), "rb") as file:
                content = file.read(LARGEST_METADATA + 1)
        except OSError as error:
            raise CorruptDonorError(Quarantine.BAD_METADATA, str(error)) from error
        if len(content) > LARGEST_METADATA:
            raise CorruptDonorError(Quarantine.BAD_METADATA, "larger than any donor's metadata")
        metadata = decode_metadata(content)
        if metadata.stem != stem:
            raise CorruptDonorError(Quarantine.MISMATCH, "the metadata of another donor")
        layout = FileLayout(metadata.spec)
        try:
            with open(open_file(self.data_path(stem)), "rb") as file:
                header, size = file.read(len(layout.header)), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise CorruptDonorError(Quarantine.MISSING_DATA, str(error)) from error
        if size != layout.nbytes:
            raise CorruptDonorError(Quarantine.TRUNCATED, f"{size} bytes instead of {layout.nbytes}")
        if header != layout.header:
            raise CorruptDonorError(Quarantine.MISMATCH, "the tensors are of another shape")
        return metadata

    def _write(self, target: Path, fill: Callable[[int], Result]) -> Result:
        partial = target.with_name(target.name + PARTIAL)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            result = fill(descriptor)
            self._sync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, target)
        self._sync_folder()
        return result

    def _sync_folder(self) -> None:
        descriptor = os.open(self.donors, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def _take_lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise StoreDirectoryError(
                f"disk_path={str(self.root)!r} is in use by another store or process: give each engine a folder "
                "of its own (SEMBLEND_STORE_DISK_PATH)"
            ) from None
        except OSError:
            # Some network file systems know no locks. One process per folder is then the user's care.
            return


def _remove(path: Path) -> None:
    """What was set aside may be no file at all."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
