"""Files of text, plain or compressed, by lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def find(
    data: str,
    data_dir: Path | None,
    is_text: Callable[[Path], bool],
    what: str,
    *,
    download: bool,
) -> list[Path]:
    """Return the files that data is read from, sorted.

    Parameters
    ----------
    data : str
        Its name in a run config.
    data_dir : Path or None
        What the run says: a file, or a folder with files, in folders as well.
    is_text : callable
        Whether a file of a folder is one, from its name without compression.
    what : str
        What the files are, for messages.
    download : bool
        Whether the run would fetch what is missing, which cannot be done.

    Raises
    ------
    ValueError
        If nothing is named.
    FileNotFoundError
        If there is no such file or folder, or nothing in it.
    """
    advice = f"set data-dir to {what}"
    if download:
        advice += " (download = true cannot fetch it)"
    if data_dir is None:
        raise ValueError(f"data-dir must not be empty for data = {data!r}: {advice}")
    place = data_dir.expanduser().absolute()
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(f"{place} is missing, for data = {data!r}: {advice}")
    paths = [
        path
        for path in sorted(place.rglob("*"))
        if path.is_file() and is_text(_without_compression(path))
    ]
    if not paths:
        raise FileNotFoundError(f"{place} has no files for data = {data!r}: {advice}")
    return paths


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return the lines of a file in UTF-8, and their numbers from 1, one after the other.

    Raises
    ------
    ImportError
        If the file is compressed by Zstandard and there is no decoder.
    ValueError
        If the file is not whole, or not UTF-8; the message names it, and the line.
    """
    number, reason = 0, ""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        reason = f"{path}, line {number}, is not UTF-8: {error.reason}"
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        reason = _broken(path, error)
    except OSError as error:
        if error.errno is not None:  # the system's, not bz2's about its data
            raise
        reason = _broken(path, error)
    if reason:  # raised here, not to carry an error that quotes the file
        raise ValueError(reason)


def _without_compression(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _COMPRESSED else path


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".bz2":
        return cast(IO[bytes], bz2.open(path))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path))
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstandardFile(path), 1 << 20)
    return path.open("rb")


class _ZstandardFile(io.RawIOBase):
    """The content of a file of Zstandard frames.

    ``zstandard``'s own reader takes a file that was cut off for one that ends there.
    """

    _CHUNK = 1 << 16
    _MAX_WINDOW = 1 << 31  # pushshift's files need more than the usual 128 MiB

    def __init__(self, path: Path) -> None:
        try:
            self._zstandard: Any = import_module("zstandard")
        except ImportError as error:
            raise ImportError(f"{path} needs zstandard: pip install zstandard") from error
        self._file = path.open("rb")
        self._frame: Any = None
        self._compressed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            self._compressed = self._compressed or self._file.read(self._CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._decompress()
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _decompress(self) -> None:
        if self._frame is None:
            decoder = self._zstandard.ZstdDecompressor(max_window_size=self._MAX_WINDOW)
            self._frame = decoder.decompressobj()
        try:
            self._content = memoryview(self._frame.decompress(self._compressed))
        except self._zstandard.ZstdError:
            raise zlib.error from None  # as of the other formats
        self._compressed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None


def _broken(path: Path, error: Exception) -> str:
    """Return what is wrong with a file, of whose content nothing is said."""
    early = ": it ends too early" if isinstance(error, EOFError) else ""
    return f"{path} is not a whole {path.suffix} file{early}"
