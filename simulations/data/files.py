"""Where the files of a data set lie, and how they come there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulations import extras

FETCHED = Path("~/.cache/flwr-sdp")
"""Where files are fetched to, and looked for, without a data-dir."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """The files of one data set.

    Attributes
    ----------
    data : str
        Its name in a run config.
    files : tuple of str
        Their names.
    find : callable
        From a folder and a name to the file, which may have an ending, or to None.
    below : str
        The folder below a data-dir where torchvision puts them; they may lie in data-dir as well.
    torchvision : str
        torchvision's class for them.
    installed : Path or None
        Where a package of the operating system puts them.
    package : str
        That package.
    """

    data: str
    files: tuple[str, ...]
    find: Callable[[Path, str], Path | None]
    below: str
    torchvision: str
    installed: Path | None = None
    package: str = ""

    def folder(self, data_dir: Path | None, *, download: bool) -> Path:
        """Return the folder that has all files; fetch them if they are missing and may be fetched.

        Raises
        ------
        FileNotFoundError
            If a file is missing; the message names it, and says what to do.
        ImportError
            If the files are to be fetched and torchvision is missing.
        """
        root = (FETCHED if data_dir is None else data_dir).expanduser().absolute()
        places = [root / self.below, root]
        if data_dir is None and self.installed is not None:
            places.insert(0, self.installed)
        for place in places:
            if self._missing(place) is None:
                return place
        if download:
            self._download(root)
            places = places[-2:]
        # The file that stands alone in being missing tells more than the first of a folder.
        place = max(places, key=self._present)
        missing = self._missing(place)
        if missing is not None:
            raise FileNotFoundError(self._advice(place / missing))
        return place

    def _missing(self, folder: Path) -> str | None:
        return next((name for name in self.files if self.find(folder, name) is None), None)

    def _present(self, folder: Path) -> int:
        return sum(self.find(folder, name) is not None for name in self.files)

    def _advice(self, path: Path) -> str:
        ways = ["set data-dir to the folder that has it", "or download = true to fetch it"]
        if self.package:
            ways.insert(0, f"install it (apt-get install {self.package})")
        return f"{path} is missing, for data = {self.data!r}: {', '.join(ways)}"

    def _download(self, root: Path) -> None:
        datasets = extras.load("torchvision", "download = true needs").datasets
        getattr(datasets, self.torchvision)(root=str(root), train=True, download=True)
