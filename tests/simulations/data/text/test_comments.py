"""Comments of Reddit."""

import json

import pytest

from simulations.data.text.comments import clean, is_dump, read_comments


def comment(author, body):
    """Return a line as pushshift writes it."""
    return json.dumps(
        {
            "author": author,
            "author_flair_css_class": None,
            "author_flair_text": None,
            "body": body,
            "can_gild": True,
            "controversiality": 0,
            "created_utc": 1509494400,
            "distinguished": None,
            "edited": False,
            "gilded": 0,
            "id": "dp4qn5h",
            "link_id": "t3_79zb6r",
            "parent_id": "t1_dp4qmk1",
            "permalink": "/r/test/comments/79zb6r/test/dp4qn5h/",
            "retrieved_on": 1512024010,
            "score": 1,
            "stickied": False,
            "subreddit": "test",
            "subreddit_id": "t5_2qh23",
        }
    )


def write(path, *comments):
    path.write_text("".join(f"{comment(*one)}\n" for one in comments))
    return path


def test_comments_come_by_author_over_all_files(tmp_path):
    one = write(tmp_path / "RC_1", ("bob", "Hello."), ("ann", "Hi."), ("bob", "Well."))
    two = write(tmp_path / "RC_2", ("ann", "So."), ("cid", "No."))
    assert read_comments([one, two]) == [
        ("ann", ["Hi.", "So."]),
        ("bob", ["Hello.", "Well."]),
        ("cid", ["No."]),
    ]


def test_what_is_nobodys_text_is_left_out(tmp_path):
    path = write(
        tmp_path / "RC_1",
        ("[deleted]", "I was here."),
        ("AutoModerator", "Be kind."),
        ("ann", "[deleted]"),
        ("bob", "[removed]"),
        ("cid", " \n "),
        ("dan", "https://example.org/a"),
        ("eve", "&gt; a quotation"),
        ("fay", "[removed] by me"),
    )
    assert read_comments([path]) == [("fay", ["[removed] by me"])]


def test_a_sample_is_the_same_whatever_the_order(tmp_path):
    comments = [(f"user-{number % 50}", f"text {number}") for number in range(200)]
    one = write(tmp_path / "RC_1", *comments)
    two = write(tmp_path / "RC_2", *comments[::-1])
    users = [dict(read_comments([path], max_users=10)) for path in (one, two)]
    assert list(users[0]) == list(users[1])
    assert len(users[0]) == 10
    assert all(len(texts) == 4 for texts in users[0].values())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("plain text, as it is.", "plain text, as it is."),
        ("Tom &amp; Jerry &lt;3 &quot;ever&quot;", 'Tom & Jerry <3 "ever"'),
        ("&gt; what she said\n&gt;&gt; and he\n\nmy answer", "my answer"),
        ('a [link](https://example.org/a_(b) "title") here', "a link here"),
        ("![](http://example.org/i.png) so", "so"),
        ("see http://example.org/a?b=c, and www.example.org now", "see   and   now"),
        ("**bold** and *slanted* and ~~gone~~ and `code`", "bold and slanted and gone and code"),
        ("_slanted_ __bold__ but snake_case", "slanted bold but snake_case"),
        ("# Title\n\n* one\n- two\n1. three\n#1 of all", "Title\n\none\ntwo\nthree\n#1 of all"),
        ("this^is ^small and 2^3", "this^is small and 2^3"),
        ("before\n\n    code = 1\n\n***\nafter", "before\n\n\n\n\nafter"),
        (r"a \*star\* and 3 \> 2", "a *star* and 3 > 2"),
        ("C:\\dir stays", "C:\\dir stays"),
        ("zero&#x200B;width\r\nlines", "zerowidth\nlines"),
        ("it was 1984. Then", "it was 1984. Then"),
    ],
)
def test_marks_are_taken_away(body, text):
    assert clean(body) == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        (comment("a", "b")[:-40], "is not JSON"),
        ("[1]", "must be a JSON object; got list"),
        ('{"author": "ann"}', "must have a text 'body'; got NoneType"),
        ('{"author": "ann", "body": 5}', "must have a text 'body'; got int"),
        ('{"author": null, "body": "b"}', "must have a text 'author'; got NoneType"),
    ],
)
def test_a_bad_line_is_named(line, message, tmp_path):
    path = tmp_path / "RC_1"
    path.write_text(f"{comment('ann', 'a')}\n{line}\n{comment('ann', 'a')}\n")
    with pytest.raises(ValueError, match=rf"RC_1, line 2, {message}"):
        read_comments([path])


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    path = tmp_path / "RC_1"
    path.write_text('{"author": "ann", "body": "a \\ud83d b \\ud83d\\ude00"}\n')
    assert read_comments([path]) == [("ann", ["a ? b \U0001f600"])]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RC_2017-11", True),
        ("a.json", True),
        ("a.jsonl", True),
        ("a.ndjson", True),
        ("RS.csv", False),
        ("readme.txt", False),
    ],
)
def test_files_of_a_folder(name, expected, tmp_path):
    assert is_dump(tmp_path / name) == expected
