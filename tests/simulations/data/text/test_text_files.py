"""Files of text, plain or compressed."""

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import pytest

from simulations.data.text.text_files import find, lines

TEXT = "to be\nor not\r\n\nto b\u00e9\u2028that is".encode()
LINES = [(1, "to be"), (2, "or not"), (3, ""), (4, "to b\u00e9\u2028that is")]


def compress(data, ending):
    if ending == ".zst":
        return pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[ending](
        data
    )


ENDINGS = ("", ".gz", ".bz2", ".xz", ".zst")
COMPRESSED = ENDINGS[1:]


# ------------------------------------------------------------------ lines
@pytest.mark.parametrize("ending", ENDINGS)
def test_lines_are_read(ending, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(compress(TEXT, ending))
    assert list(lines(path)) == LINES


@pytest.mark.parametrize("ending", COMPRESSED)
def test_files_put_together_are_read_to_the_last(ending, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(compress(b"a\n", ending) + compress(b"b\n", ending))
    assert list(lines(path)) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_large_file_is_read_whole(ending, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(compress(b"".join(b"%d\n" % n for n in range(150_000)), ending))
    assert [int(line) for _, line in lines(path)] == list(range(150_000))


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("cut", [0.3, 0.99])
def test_a_file_that_was_cut_off_is_an_error(ending, cut, tmp_path):
    path = tmp_path / f"a.txt{ending}"
    whole = compress(b"".join(b"%d\n" % (n * 7919 % 65521) for n in range(20_000)), ending)
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(ValueError, match=rf"a\.txt\{ending} is not a whole \{ending} file"):
        list(lines(path))


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_file_with_the_wrong_ending_is_an_error(ending, tmp_path):
    if ending == ".zst":
        pytest.importorskip("zstandard")
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(b"plain text, and nothing else at all\n" * 9)
    with pytest.raises(ValueError, match=rf"a\.txt\{ending} is not a whole \{ending} file"):
        list(lines(path))


def test_another_encoding_names_file_and_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n\xe9\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 3, is not UTF-8"):
        list(lines(path))


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    assert list(lines(path)) == [(1, "a"), (2, "\ufeffb")]


def test_without_zstandard_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "a.zst"
    path.write_bytes(b"")
    with pytest.raises(ImportError, match=r"a\.zst needs zstandard: pip install zstandard"):
        list(lines(path))


@pytest.mark.parametrize("ending", COMPRESSED[:-1])
def test_an_error_of_the_system_stays_one(ending, tmp_path):
    with pytest.raises(FileNotFoundError):
        list(lines(tmp_path / f"nowhere{ending}"))


# ------------------------------------------------------------------ folders
def found(data_dir, *, download=False):
    return find("text", data_dir, lambda path: path.suffix == ".txt", "a file", download=download)


def test_a_file_is_taken_whatever_its_name(tmp_path):
    path = tmp_path / "book"
    path.touch()
    assert found(path) == [path]


def test_a_folder_is_searched(tmp_path):
    names = ["b.txt", "a.txt.gz", "below/c.txt", "below/d.txt.zst", "a.md", "txt", "e.txt.zip"]
    (tmp_path / "below").mkdir()
    (tmp_path / "folder.txt").mkdir()
    for name in names:
        (tmp_path / name).touch()
    expected = ["a.txt.gz", "b.txt", "below/c.txt", "below/d.txt.zst"]
    assert found(tmp_path) == [tmp_path / name for name in expected]


def test_home_is_known(monkeypatch, tmp_path):
    (tmp_path / "a.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert found(Path("~/a.txt")) == [tmp_path / "a.txt"]


@pytest.mark.parametrize("download", [False, True])
def test_what_is_missing_says_what_to_do(download, tmp_path):
    advice = r": set data-dir to a file" + (r" \(download = true cannot" if download else "$")
    with pytest.raises(ValueError, match="data-dir must not be empty for data = 'text'" + advice):
        found(None, download=download)
    with pytest.raises(FileNotFoundError, match="nowhere is missing, for data = 'text'" + advice):
        found(tmp_path / "nowhere", download=download)
    with pytest.raises(FileNotFoundError, match="has no files for data = 'text'" + advice):
        found(tmp_path, download=download)
