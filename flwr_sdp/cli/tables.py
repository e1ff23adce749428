"""Tables for the terminal."""

from __future__ import annotations

from rich.table import Table


def table(title: str, *columns: str) -> Table:
    """Return an empty table without lines; where it is too narrow, these columns are folded."""
    made = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def facts(title: str, rows: list[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    made = Table(title=title, title_justify="left", box=None, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column()
    for row in rows:
        made.add_row(*row)
    return made
