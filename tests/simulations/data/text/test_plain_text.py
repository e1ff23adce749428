"""Files of plain text."""

import tracemalloc

from simulations.data.text.plain_text import is_text, read_files


def paragraphs(path):
    [(user, texts)] = read_files([path])
    assert user == str(path)
    return list(texts)


def test_each_file_is_a_user_and_blank_lines_divide_paragraphs(tmp_path):
    one, two = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("\n\nto be\nor not\n \n\nto be")
    two.write_text("\n")
    assert paragraphs(one) == ["to be\nor not", "to be"]
    assert paragraphs(two) == []
    assert [user for user, _ in read_files([one, two])] == [str(one), str(two)]


def test_a_file_without_blank_lines_is_never_in_memory(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("all work and no play makes jack a dull boy\n" * 50_000)
    tracemalloc.start()
    try:
        ((_, texts),) = read_files([path])
        count = sum(text.count("jack") for text in texts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50_000
    assert peak < 500_000


def test_files_of_a_folder(tmp_path):
    assert is_text(tmp_path / "a.txt")
    assert not is_text(tmp_path / "a.md")
