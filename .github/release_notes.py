"""Print the section of CHANGELOG.md for one version: ``python .github/release_notes.py 0.1.0``."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(changelog: str, version: str) -> str:
    """The lines below the heading of a version. The version must be dated and not empty."""
    sections = re.split(r"^## ", changelog, flags=re.M)[1:]
    for section in sections:
        heading, _, body = section.partition("\n")
        if heading.split()[:1] == [version]:
            if "unreleased" in heading.lower():
                sys.exit(f"CHANGELOG.md: write the date of {version} into its heading first")
            if not body.strip():
                sys.exit(f"CHANGELOG.md says nothing about {version}")
            return body.strip() + "\n"
    known = ", ".join(section.split()[0] for section in sections)
    sys.exit(f"CHANGELOG.md has no section {version}; it has {known}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(notes((ROOT / "CHANGELOG.md").read_text(), sys.argv[1]), end="")
