"""The directive ``commands``: the commands of ``flwr-sdp``, read from the program."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from flwr_sdp.cli.app import app


class Commands(SphinxDirective):
    """A section for each command, in the order of ``flwr-sdp --help``."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        group = typer.main.get_command(app)
        context = click.Context(group, info_name=app.info.name)
        return [
            node
            for name in group.list_commands(context)
            for node in self.parse_text_to_nodes(
                "\n".join(_lines(name, group.get_command(context, name), context)),
                allow_section_headings=True,
            )
        ]


def _lines(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """Yield the Markdown of one command."""
    context = click.Context(command, info_name=name, parent=parent)
    yield from (f"## {name}", "")
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        before, mark, call = text.partition("flwr-sdp ")
        if mark:
            yield from (before.strip(), "", "```sh", mark + call, "```", "")
        else:
            yield from (text, "")
    yield from ("```text", command.get_usage(context), "```", "", "| | |", "| --- | --- |")
    for parameter in command.get_params(context):
        yield f"| {_names(parameter)} | {_cell(_description(parameter, context))} |"
    yield ""


def _names(parameter: click.Parameter) -> str:
    names = [parameter.human_readable_name]
    if isinstance(parameter, click.Option):
        names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name}`" for name in names)


def _description(parameter: click.Parameter, context: click.Context) -> str:
    text = str(getattr(parameter, "help", None) or "")
    default = parameter.get_default(context)
    if parameter.required:
        return f"{text} Required."
    if default is None or isinstance(default, bool) or parameter.name == "help":
        return text
    return f"{text} By default `{default}`."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
