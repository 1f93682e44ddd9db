"""Settings of the documentation site. ``make docs`` builds it with Sphinx into ``site/``."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import onnxtrain_sklearn

# A build keeps most of what it makes: looking for garbage as often as usual takes a seventh of its time.
youngest, middle, oldest = gc.get_threshold()
gc.set_threshold(10 * youngest, middle, 10 * oldest)

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "onnxtrain-sklearn"
author = "the developers of onnxtrain-sklearn"
project_copyright = author
version = release = onnxtrain_sklearn.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "browser_page",
    "llms_txt",
    "mathml",
    "own_members",
    "parameter_groups",
    "site_links",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py", "gallery/*.zip"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"matplotlib\..*")]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autosummary_generate = True
toc_object_entries_show_parents = "hide"
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # numpydoc says the types
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False  # the template of a class lists them

# The examples run when the site is built; a failing one fails the build.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "subsection_order": [
        f"../examples/gallery/{name}" for name in ("training", "data", "adapting", "derivatives", "extending")
    ],
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("onnxtrain_sklearn",),
    "reference_url": {"onnxtrain_sklearn": None},
    "remove_config_comments": True,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = f"onnxtrain-sklearn {release}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
# Pages without others below them have no side bar.
html_sidebars = {
    page: [] for page in ("getting_started", "which_estimator", "faq", "benchmarks", "design", "security", "changelog")
}
html_theme_options = {
    "logo": {"text": html_title},
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
