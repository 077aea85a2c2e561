"""Whether a file was written or replaced, without reading it."""

import os
from pathlib import Path

FileVersion = tuple[int, int, int]
ABSENT: FileVersion = (0, 0, 0)


def version_of(file: Path | os.DirEntry[str]) -> FileVersion:
    """Time, size and inode of a file; `ABSENT` of one that is gone, or of a link that leads nowhere."""
    try:
        status = file.stat()
    except OSError:
        return ABSENT
    return (status.st_mtime_ns, status.st_size, status.st_ino)
