"""Where Debian packages come from: the repository names no host, the machine that builds the image does."""

from __future__ import annotations

import os
import subprocess

_FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"


def find_mirror() -> str | None:
    """Return the archive's base URI from $MIRROR or apt's configuration, None for mmdebstrap's own default."""
    if mirror := os.environ.get("MIRROR"):
        return mirror
    try:
        listing = subprocess.run(
            ["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return pick_archive(listing)


def pick_archive(listing: str) -> str | None:
    """Return the first URI of the main Debian archive among apt's index targets (tab separated lines)."""
    for line in listing.splitlines():
        uri, release, component = line.split("\t")
        is_archive = uri.rstrip("/").endswith("/debian") and "security" not in release
        if is_archive and component == "main":
            return uri
    return None
