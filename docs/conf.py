"""How the site is built: ``make docs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "flwr-sdp"
author = "The flwr-sdp authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "commands",
]
exclude_patterns = ["extensions"]
html_theme = "furo"
html_title = project
smartquotes = False  # or the options of commands get dashes

# Links that work on a forge: to headings by their text, to files of the repository by their path
# (the site holds a copy of such a file).
myst_heading_anchors = 4

autodoc_typehints = "none"  # the docstrings have them in words
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

# A reference to a name of ours that is not documented is an error; what others document is not at
# hand, since the build needs no network.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!(flwr_sdp|strategies|clients)\.).*")]
